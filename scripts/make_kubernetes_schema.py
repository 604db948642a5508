#!/usr/bin/env python3
"""Writes place/tests/kubernetes/v1.37.json: what the published Kubernetes schemas say of Deployments and ConfigMaps.

    pip install kubernetes-validate==1.37.0
    python scripts/make_kubernetes_schema.py

The package carries the JSON schemas that are generated from the OpenAPI document of each Kubernetes release; "strict"
ones allow no key that the API does not know. Definitions that the two kinds do not reach are left out, and so are
descriptions and Kubernetes' own `x-` keys, which no validator looks at.
"""

import importlib.resources
import json
import pathlib

RELEASE = "v1.37.0"
ROOTS = ["io.k8s.api.apps.v1.Deployment", "io.k8s.api.core.v1.ConfigMap"]


def references(node):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from [value.rsplit("/", 1)[1]] if key == "$ref" else references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def bare(node, names=False):
    """Without descriptions; the keys of `properties` are names, so those stay."""
    if isinstance(node, dict):
        kept = lambda key: names or not (key == "description" or key.startswith("x-kubernetes"))
        return {key: bare(value, key == "properties" and not names) for key, value in node.items() if kept(key)}
    return [bare(value) for value in node] if isinstance(node, list) else node


def main():
    package = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
    document = json.loads((package / f"{RELEASE}-local-strict" / "_definitions.json").read_text())
    known = document["$defs"]
    reached, todo = {}, list(ROOTS)
    while todo:
        name = todo.pop()
        if name not in reached:
            reached[name] = bare(known[name])
            todo += references(reached[name])
    schema = {"$schema": document["$schema"], "$defs": dict(sorted(reached.items()))}
    path = pathlib.Path(__file__).parent.parent / "place/tests/kubernetes" / f"{RELEASE.rpartition('.')[0]}.json"
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in schema["$defs"].items()]
    path.write_text('{"$schema": %s, "$defs": {\n%s\n}}\n' % (json.dumps(schema["$schema"]), ",\n".join(lines)))


if __name__ == "__main__":
    main()
