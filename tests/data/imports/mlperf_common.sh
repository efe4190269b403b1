# The form of config_common.sh and config_fp8.sh of the same.
export USE_DIST_OPTIMIZER=True
export NVTE_FWD_LAYERNORM_SM_MARGIN=8
export NCCL_MIN_NCHANNELS=4
export CUDA_DEVICE_MAX_CONNECTIONS=1
export MICRO_BATCH_SIZE=2
export EXTRA_ARGS="exp_manager.create_tensorboard_logger=False ${EXTRA_ARGS:-}"
export FP8=True
export FP8_HYBRID=True
