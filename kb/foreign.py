"""Words of other stacks: a log full of them is somebody else's failure.

The NPU stack shares compilers, Python and kernels with the rest of the world, so a CUDA, Docker or
Java failure can look similar. These names, none of which the NPU stack itself prints, weigh
against an answer; how much is learnt (`kb.rank`).
"""

from __future__ import annotations

from collections.abc import Mapping

FOREIGN_TERMS = frozenset(
    """
    cuda cudnn cublas nvcc nvidia nvrm nccl tensorrt cutlass cupti nvml xid geforce rtx a100 h100
    rocblas miopen hipcc hsa rccl hipblas hiperror amdgpu radv mesa gfx1100
    vulkan opengl directx d3d12 dxgi metal mps opencl sycl levelzero
    openvino intel i915 xe vpu vpux gna habana gaudi qnn qualcomm hexagon snpe htp adreno rknn coral edgetpu tpu jax xla
    coreml apple silicon ane arm mali ethos
    docker dockerfile podman containerd kubernetes kubectl kubelet k8s pod helm crashloopbackoff
    postgres postgresql psql mysql mariadb mongodb redis kafka elasticsearch rabbitmq cassandra
    java jvm gradle maven lucene javac kotlin scala spark hadoop clojure
    npm nodejs webpack yarn pnpm eslint vite react angular typescript tsc electron
    rustc cargo golang goroutine dotnet nuget csharp php composer laravel ruby gem rails perl cpan swift xcode
    android apk adb ios
    nginx apache httpd haproxy terraform ansible jenkins travis s3 ec2 lambda gcloud azure
    wordpress django flask celery gunicorn fastapi
    latex pdflatex blender unity unreal steam wine gnome gdm wayland xorg pulseaudio pipewire bluetooth wifi iwlwifi
    nouveau zfs btrfs ext4 nfs ceph mdadm lvm nvme usb
    selinux apparmor sshd ssh postfix ldap kerberos
    oracle sap excel outlook
    """.split()
)


def foreign_share(terms: Mapping[str, float]) -> float:
    """Weight of foreign terms over that of all telling terms (weight above plain)."""
    telling = {term: weight for term, weight in terms.items() if weight >= 1.0 and term.isalpha()}
    total = sum(telling.values())
    return sum(weight for term, weight in telling.items() if term in FOREIGN_TERMS) / total if total else 0.0
