//! Faults that no check has to know: the stand-in itself tells them.

use super::Change;
use super::stand_in::*;
use dtrain_cuda::kernels::*;

/// What the stand-in itself has to notice, and the words that it says.
pub static FAULTS: &[(Change, &str)] = &[
    // A barrier is missing: shared memory is read before it is written.
    ((&COLUMN_PARTS, "    __syncthreads();\n    u32 column", "    u32 column", sums::column_sums), "NaN"),
    // What comes next lies where some still read.
    ((&PRODUCT_64X64, "start += DEPTH, stage ^= 1", "start += DEPTH", product::product), "Set }: c ["),
    // Some threads never come to a barrier.
    (
        (
            &COLUMN_PARTS,
            "    room.put(sums)",
            "    if (threadIdx.x / 32 == 3) return;\n    room.put(sums)",
            sums::column_sums,
        ),
        "waits at barrier",
    ),
    // Some lanes never come to a shuffle.
    (
        (
            &LAYER_NORM,
            "    if (row >= rows) return;",
            "    if (row >= rows || threadIdx.x % 32 == 5) return;",
            norms::layer_norm,
        ),
        "waits at shuffle",
    ),
    // What is copied behind a thread's back is read before it is waited for.
    (
        (
            &ATTENTION_BF16_32,
            "end_of_copies();\n    copies_are_done<0>();",
            "end_of_copies();",
            attention_half::forward_32::<Bf16>,
        ),
        "is off by None",
    ),
    // What others copied is read before they were at a barrier.
    (
        (
            &ATTENTION_BF16_32,
            "copies_are_done<0>();\n    __syncthreads();",
            "copies_are_done<0>();",
            attention_half::forward_32::<Bf16>,
        ),
        "is off by None",
    ),
    // The rows of a matrix lie askew.
    (
        (
            &ATTENTION_BF16_32,
            "pitch + k + lane / 16 * 8",
            "pitch + k + lane / 16 * 4",
            attention_half::forward_32::<Bf16>,
        ),
        "not aligned to 16 bytes",
    ),
    // One element too far.
    (
        (
            &COPY,
            "i < len; i += next_element()) y[i] = f(x[i])",
            "i < len + 1; i += next_element()) y[i] = f(x[i])",
            elementwise::copy,
        ),
        "something was written to",
    ),
    // One element too few: what was never written is NaN.
    (
        (
            &ADD,
            "i < len; i += next_element()) y[i] = f(a[i]",
            "i + 1 < len; i += next_element()) y[i] = f(a[i]",
            elementwise::add,
        ),
        "NaN",
    ),
    // An operand is written.
    (
        (
            &SGD,
            "float next = p[i] - lr * (g[i]",
            "((float*)g)[i] = 0.0f; float next = p[i] - lr * (g[i]",
            update::sgd,
        ),
        "only to be read",
    ),
];
