# The form of NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/llama/*_workload_base_configs.py.
from utils.utils import WorkloadBaseConfig
BASE = WorkloadBaseConfig(expert_model_parallel_size=1)
LLAMA31_405B_PRETRAIN_CONFIG_H100_FP8_CS_V1 = replace(
    BASE, num_gpus=1024, tensor_model_parallel_size=8, pipeline_model_parallel_size=8,
    context_parallel_size=2, virtual_pipeline_model_parallel_size=8, global_batch_size=512,
)
LLAMA31_405B_PRETRAIN_CONFIG_H100_FP8_CS_V2 = replace(
    LLAMA31_405B_PRETRAIN_CONFIG_H100_FP8_CS_V1, global_batch_size=1536, extra_knob=3
)
LLAMA31_405B_PRETRAIN_CONFIG_GB300_BF16_V1 = replace(
    BASE, num_gpus=128, tensor_model_parallel_size=2, global_batch_size=64, use_megatron_fsdp=True,
    cpu_offloading_num_layers=42,
)
LLAMA3_70B_LORA_CONFIG_H100_BF16_V1 = replace(BASE, num_gpus=8, tensor_model_parallel_size=8, global_batch_size=32)
