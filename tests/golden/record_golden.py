"""Record all golden cases again, and list those that changed: `make golden`."""

import json

from golden_file import PATH, SAME_MACHINE, all_cases, compute, differences, machine

import conftest  # noqa: F401  # compile as the tests do, before anything imports JAX


def main():
    """Write the golden file."""
    old = json.loads(PATH.read_text(encoding="utf-8"))["cases"] if PATH.exists() else {}
    recorded = {}
    for name, case in all_cases().items():
        found = compute(case)
        for line in differences(old[name], found, SAME_MACHINE) if name in old else ["new"]:
            print(f"{name}: {line}", flush=True)
        recorded[name] = {key: value.tolist() for key, value in found.items()}
    text = json.dumps({"machine": machine(), "cases": recorded})
    PATH.write_text(text.replace('}, "', '},\n"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
