"""Whose failure is it: words only the NPU stack prints, words near it, and words of other stacks.

The NPU stack shares compilers, Python and kernels with the rest of the world, so a CUDA, Docker or
Java failure can look similar to one of ours. How much these shares count is learnt (`kb.rank`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kb.tokens import stem, terms

_HOME = """
npu npus xdna xdna1 xdna2 amdxdna aie aie2 aie2p aiex aieml aievec aiecc aircc aieopt airopt airrt air mliraie mlirair mlir_aie
mlir_air peano llvmaie llvm_aie xrt xrtsmi xbutil xbmgmt pyxrt xclbin xclbinutil ert hwctx amdnpu npu.sbin sbin smu psp
ryzen ryzenai phoenix hawkpoint strix krackan gorgon halo phx stx herd segment memtile shim shimdma objectfifo objfifo bd bds
pingpong iron irons ironenv vaip vitisai vitis quark flm fastflowlm lemonade gaia oga q4nx bfp16 cdo pdi insts xchesscc chess
amdaie iree ert_cmd_state aierouter pathfinder switchbox rtp tct mm2s s2mm xrtrunner xrtbackend triton_xdna aieml hxclbin
drm_ioctl_amdxdna accel0 accel onnxruntime_genai voe xmodel airherd lqp lkp omit_pingpong npu1 npu2 npu4 npu5 npu6 17f0 1502
"""
_NEAR = """
cos cosine corr correlation logits layer bf16 bfloat16 int4 int8 awq q_proj k_proj v_proj o_proj qkv rope gemm gemv matvec matmul
rmsnorm layernorm softmax swiglu silu gelu prefill decode token tok logit argmax tile tiles core dma channel stride fifo lock launch
elf mmul accum herd_m herd_x tile_m tile_n tile_k seq_len emb head_dim kv kv_cache lut stale garbage accelerator device dispatch
bo group_id vectorize unroll intrinsic lowering legalize pass placement router routing switchbox broadcast cascade gguf onnx
llama qwen smollm gemma phi mistral deepseek whisper igpu hybrid
"""
_FOREIGN = """
cuda cudnn cublas nvcc nvidia nvrm nccl tensorrt cutlass cupti nvml xid geforce rtx a100 h100 jetson
rocblas miopen hipcc hsa rccl hipblas hiperror mes amdgpu radv mesa gfx1100 offload
vulkan opengl directx d3d12 dxgi directml mps opencl sycl levelzero
openvino intel i915 xe vpu vpux gna habana gaudi qnn qualcomm hexagon snpe htp adreno rknn rockchip coral edgetpu tpu jax xla hailo
coreml macos ane mali ethos
docker dockerfile podman containerd kubernetes kubectl kubelet k8s pod helm crashloopbackoff buildkit
postgres postgresql psql pg_hba mysql mariadb mongodb redis kafka elasticsearch rabbitmq cassandra sqlite
java jvm gradle maven lucene javac kotlin scala hadoop clojure
npm nodejs webpack yarn pnpm eslint vite angular typescript tsc electron
rustc cargo golang goroutine dotnet nuget csharp msbuild php composer laravel ruby gem perl cpan swift xcode
android apk adb ios gradlew
nginx apache httpd haproxy terraform ansible jenkins travis s3 ec2 lambda gcloud azure aws
wordpress django flask celery gunicorn
latex pdflatex blender unity unreal steam gnome gdm wayland xorg pulseaudio pipewire bluetooth wifi iwlwifi cups printer
nouveau zfs btrfs ext4 nfs ceph mdadm lvm nvme
selinux apparmor sshd ssh postfix ldap kerberos
oracle sap excel outlook chrome firefox
vivado hls zynq alveo quartus verilog
vllm sglang deepspeed megatron
"""


def _stems(words: str) -> frozenset[str]:
    return frozenset(term for word in words.split() for term in (word, stem(word), *terms(word)[:1]))


HOME_TERMS, NEAR_TERMS, FOREIGN_TERMS = _stems(_HOME), _stems(_NEAR), _stems(_FOREIGN)


def home_share(weights: Mapping[str, float]) -> float:
    """Weight of the NPU stack's words over that of all words in telling lines [0, 1]."""
    return _share(weights, HOME_TERMS)


def near_share(weights: Mapping[str, float]) -> float:
    """Weight of words at home here but not only here (tiles, tensors, models) over that of all [0, 1]."""
    return _share(weights, NEAR_TERMS)


def foreign_share(weights: Mapping[str, float]) -> float:
    """Weight of other stacks' words over that of all words in telling lines [0, 1]."""
    return _share(weights, FOREIGN_TERMS)


def _share(weights: Mapping[str, float], words: frozenset[str]) -> float:
    telling = {term: weight for term, weight in weights.items() if weight >= 1.0}
    total = sum(telling.values())
    return sum(weight for term, weight in telling.items() if term in words) / total if total else 0.0
