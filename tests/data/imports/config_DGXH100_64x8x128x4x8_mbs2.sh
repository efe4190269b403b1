# The form of NVIDIA's configuration for 512 H100, MLPerf Training v4.0, with its common parts beside it.
export MINIBS="${MINIBS:=128}"
export TENSOR_MODEL_PARALLEL=4   # training.model.tensor_model_parallel_size
export PIPELINE_MODEL_PARALLEL=8
export DGXNNODES="${DGXNNODES:=64}"
export DGXSYSTEM=$(basename $(readlink -f ${BASH_SOURCE[0]}) | sed 's/^config_//' | sed 's/\.sh$//' )
export WALLTIME_MINUTES=180
export WALLTIME=$(( (${NEXP:-1} * WALLTIME_MINUTES) ))
if [[ "${MLPERF_VERSION:-}" == "v31" ]]; then
    source $(dirname ${BASH_SOURCE[0]})/config_common_v31.sh
else
    source $(dirname ${BASH_SOURCE[0]})/config_common.sh
fi
source $(dirname ${BASH_SOURCE[0]})/config_fp8.sh
export MICRO_BATCH_SIZE=2
export TP_COMM_OVERLAP=True
if [[ $(($MINIBS % PIPELINE_MODEL_PARALLEL)) != 0 ]]; then
    echo "MINIBS should be divisble by PP"
    exit 1
fi
export INTERLEAVED_PIPELINE=4
