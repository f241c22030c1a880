"""Build the Kubernetes that the tests run against: API server, scheduler, controllers and etcd, into ``.tools/bin``.

Done once, in minutes. Modules come from the Go proxy, checked by Go's sum database. There is no kubelet: the tests have
a small one of their own, see ``tests/launchers/kubernetes``.
"""

from __future__ import annotations

import subprocess
import sys
import time

from go_tool import TOOLS, BuildError, build

VERSION = "1.34.4"
ETCD = "3.6.4"
COMPONENTS = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
# Parts of k8s.io/kubernetes that are published as modules of their own, and that its go.mod expects as folders.
STAGING = [
    *("api", "apiextensions-apiserver", "apimachinery", "apiserver"),
    *("cli-runtime", "client-go", "cloud-provider", "cluster-bootstrap"),
    *("code-generator", "component-base", "component-helpers", "controller-manager"),
    *("cri-api", "cri-client", "csi-translation-lib", "dynamic-resource-allocation"),
    *("endpointslice", "externaljwt", "kms", "kube-aggregator"),
    *("kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl"),
    *("kubelet", "metrics", "mount-utils", "pod-security-admission"),
    *("sample-apiserver", "sample-cli-plugin", "sample-controller"),
]


def main() -> int:
    """Build the programs, unless they are there in this version."""
    if is_built():
        return 0
    began = time.monotonic()
    sys.stdout.write(f"setup: building Kubernetes {VERSION} and etcd {ETCD} for the tests; ten minutes, once\n")
    sys.stdout.flush()
    replaced = "".join(f"\tk8s.io/{one} => k8s.io/{one} v0{VERSION[1:]}\n" for one in STAGING)
    module = (
        "module streamwarden.test/kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n"
        f"require (\n\tgo.etcd.io/etcd/server/v3 v{ETCD}\n\tk8s.io/kubernetes v{VERSION}\n)\n\nreplace (\n{replaced})\n"
    )
    # The version is what the server reports, and what clients compare.
    stamp = f"-X=k8s.io/component-base/version.gitVersion=v{VERSION}"
    flags = ["-mod=mod", "-trimpath", f"-ldflags=-s -w {stamp}", "-o", "{out}/"]
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in COMPONENTS] + ["go.etcd.io/etcd/server/v3"]
    try:
        # The last part of etcd's package, v3, is a version: the program is named after the part before it.
        build(["build", *flags, *packages], programs=[*COMPONENTS, "server"], files={"go.mod": module})
    except BuildError as error:
        sys.stderr.write(
            f"Kubernetes {VERSION} for the tests could not be built: {error}\n"
            "  What to do: put a Go on PATH and check the network (GOPROXY behind a mirror).\n"
        )
        return 1
    (TOOLS / "bin" / "server").replace(TOOLS / "bin" / "etcd")
    sys.stdout.write(f"setup: Kubernetes {VERSION} built in {time.monotonic() - began:.0f} s\n")
    return 0


def is_built() -> bool:
    """Tell whether the programs are there, the API server in the pinned version."""
    if not all((TOOLS / "bin" / name).is_file() for name in [*COMPONENTS, "etcd"]):
        return False
    said = subprocess.run([TOOLS / "bin" / COMPONENTS[0], "--version"], capture_output=True, text=True, check=False)
    return f"v{VERSION}" in said.stdout


if __name__ == "__main__":
    sys.exit(main())
