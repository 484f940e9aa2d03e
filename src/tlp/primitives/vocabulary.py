"""Kinds and tokens that primitives of both frameworks share, version 1.

A kind stands for what a primitive does. Ansor's steps and MetaSchedule's instructions have the
same kind where they mean the same; which of them it was is the primitive's ``opcode``. Kinds and
tokens are only ever appended, and then the version grows, since encodings refer to their order.
"""

from __future__ import annotations

VOCABULARY_VERSION = 1

UNKNOWN = "unknown"

ANSOR_KINDS: dict[str, str] = {
    "SP": "split",
    "FSP": "follow_split",
    "FFSP": "follow_fused_split",
    "RE": "reorder",
    "FU": "fuse",
    "AN": "annotate",
    "PR": "pragma",
    "CA": "compute_at",
    "CI": "inline",
    "CR": "compute_root",
    "CHR": "cache_read",
    "CHW": "cache_write",
    "RF": "rfactor",
    "SA": "storage_align",
}

METASCHEDULE_KINDS: dict[str, str] = {
    # What is sampled.
    "SampleCategorical": "sample_categorical",
    "SamplePerfectTile": "sample_tile",
    "SamplePartitionedTile": "sample_partitioned_tile",
    "SampleComputeLocation": "sample_compute_location",
    # What is looked up. Older versions of TVM say "Block" for "SBlock".
    "GetBlock": "get_block",
    "GetSBlock": "get_block",
    "GetLoops": "get_loops",
    "GetChildBlocks": "get_child_blocks",
    "GetProducers": "get_producers",
    "GetConsumers": "get_consumers",
    "GetOutputBlocks": "get_output_blocks",
    # Loops.
    "Fuse": "fuse",
    "Merge": "merge",
    "Split": "split",
    "LoopPartition": "loop_partition",
    "Reorder": "reorder",
    "ReorderBlockIterVar": "reorder_block_axes",
    "AddUnitLoop": "add_unit_loop",
    "Parallel": "annotate",
    "Vectorize": "annotate",
    "Unroll": "annotate",
    "Bind": "annotate",
    "Annotate": "annotate",
    "Unannotate": "unannotate",
    "AnnotateBufferAccess": "annotate_buffer_access",
    # Stages.
    "CacheRead": "cache_read",
    "CacheWrite": "cache_write",
    "CacheInplace": "cache_inplace",
    "CacheIndex": "cache_index",
    "ReindexCacheRead": "reindex_cache_read",
    "ReindexCacheWrite": "reindex_cache_write",
    "ReIndex": "reindex",
    "ReadAt": "read_at",
    "WriteAt": "write_at",
    "ComputeAt": "compute_at",
    "ReverseComputeAt": "reverse_compute_at",
    "ComputeInline": "inline",
    "ReverseComputeInline": "reverse_inline",
    "FuseReductionEpilogue": "fuse_reduction_epilogue",
    "DecomposeReduction": "decompose_reduction",
    "RFactor": "rfactor",
    # Blocks, buffers and intrinsics.
    "StorageAlign": "storage_align",
    "SetScope": "set_scope",
    "UnsafeSetDType": "set_dtype",
    "UnsafeHideBufferAccess": "hide_buffer_access",
    "SetAxisSeparator": "set_axis_separator",
    "Blockize": "blockize",
    "Tensorize": "tensorize",
    "TransformLayout": "transform_layout",
    "TransformBlockLayout": "transform_block_layout",
    "DecomposePadding": "decompose_padding",
    "PadEinsum": "pad_einsum",
    "RollingBuffer": "rolling_buffer",
}

KINDS: tuple[str, ...] = (
    *dict.fromkeys([*ANSOR_KINDS.values(), *METASCHEDULE_KINDS.values()]),
    UNKNOWN,
)
"""All kinds, in the order of an encoding's columns."""

LOOP_ANNOTATIONS: tuple[str, ...] = (
    "none",
    "unroll",
    "vectorize",
    "parallel",
    "vthread.x",
    "blockIdx.x",
    "threadIdx.x",
    "blockIdx.y",
    "threadIdx.y",
    "blockIdx.z",
    "threadIdx.z",
    "tensorize",
)
"""Tokens of Ansor's annotation numbers; MetaSchedule's instructions get the same ones."""

METASCHEDULE_LOOP_TOKENS = {"Parallel": "parallel", "Vectorize": "vectorize", "Unroll": "unroll"}
