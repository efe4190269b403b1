JOB_NAME = "small_sft"
SEQ_LEN = 2048
HIDDEN_SIZE = 4096
NUM_LAYER = 32
MLP_RATIO = 8 / 3
CHECKPOINT_EVERY = 50

ckpt = dict(
    enable_save_ckpt=False,
    checkpoint_every=CHECKPOINT_EVERY,
    oss_snapshot_freq=int(CHECKPOINT_EVERY / 2),
)
data = dict(seq_len=SEQ_LEN, micro_num=8, micro_bsz=2, total_steps=1000, pack_sample_into_one=False)
model = dict(
    checkpoint=False,
    num_attention_heads=32,
    vocab_size=103168,
    hidden_size=HIDDEN_SIZE,
    num_layers=NUM_LAYER,
    mlp_ratio=MLP_RATIO,
    dtype="torch.bfloat16",
    use_flash_attn=True,
    num_chunks=2,
)
parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="msp"),
    pipeline=dict(size=4, interleaved_overlap=True),
    weight=dict(size=1, overlap=True),
)
hybrid_zero_optimizer = dict(overlap_sync_grad=True, clip_grad_norm=1.0)
