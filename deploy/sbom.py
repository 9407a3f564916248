"""Prints which crates are in the program, as a software bill of materials: CycloneDX 1.5, JSON.

Crates that only tests or builds need are left out. The checksums are those of Cargo.lock.
"""

import json
import subprocess
import tomllib


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def linked(metadata):
    """The ids of Keyward and of all packages that are linked into it."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [p["id"] for p in metadata["packages"] if p["name"] == "keyward" and p["source"] is None]
    # Procedural macros run in the compiler.
    macros = {p["id"] for p in metadata["packages"] if any("proc-macro" in t["kind"] for t in p["targets"])}
    found = set()
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in macros:
                waiting.append(dependency["pkg"])
    return found


def component(package, checksums):
    described = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
        "purl": purl(package),
    }
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return described


def main():
    rustc = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    target = next(line.removeprefix("host: ") for line in rustc.splitlines() if line.startswith("host: "))
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    with open("Cargo.lock", "rb") as file:
        locked = tomllib.load(file)["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    ids = linked(metadata)
    packages = [package for package in metadata["packages"] if package["id"] in ids]
    packages.sort(key=lambda package: (package["name"], package["version"]))
    [keyward] = [package for package in packages if package["name"] == "keyward"]
    program = {"type": "application", "bom-ref": purl(keyward), "name": "keyward", "version": keyward["version"]}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": program},
        "components": [component(package, checksums) for package in packages if package is not keyward],
    }
    print(json.dumps(bill, indent=2))


main()
