"""A local page to fit and try priors, and reports of fits as HTML."""

from importlib.util import find_spec

from metaprior.checks import MissingExtra

if missing := [name for name in ("starlette", "uvicorn", "jinja2") if find_spec(name) is None]:
    raise MissingExtra(f"The page and the report need {', '.join(missing)}: run pip install 'metaprior[app]'.")
