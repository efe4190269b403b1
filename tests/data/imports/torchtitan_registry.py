from torchtitan.trainer import Trainer

from . import model_registry


def deepseek_v3_debugmodel() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("debugmodel"),
        training=TrainingConfig(local_batch_size=8, seq_len=2048, steps=10),
        parallelism=ParallelismConfig(expert_parallel_degree=1),
        activation_checkpoint=ActivationCheckpointConfig(mode="none"),
    )


def deepseek_v3_671b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("671B", converters=[Float8LinearConverter.Config(filter_fqns=["output"])]),
        training=TrainingConfig(local_batch_size=16, seq_len=4096),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=8,
            pipeline_parallel_schedule="Interleaved1F1B",
            expert_parallel_degree=8,
        ),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective"),
        compile=CompileConfig(enable=True),
    )


def deepseek_v3_671b_longer() -> Trainer.Config:
    config = deepseek_v3_671b()
    config.training.local_batch_size = 32
    return config
