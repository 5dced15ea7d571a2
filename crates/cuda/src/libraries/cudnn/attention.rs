//! Self-attention as graphs of cuDNN, each by an engine that is written down.
//!
//! As for convolutions: somebody asks the library once for a shape ([`CudnnHandle::attention_candidates`]), its answers are plain data
//! ([`PinnedAttention`]), and it is asked again before one is used ([`CudnnHandle::accept_attention`]). Only engines count that the library
//! does not note as nondeterministic. Of the gradient's graph that leaves those which keep the gradient of the scores: one that adds up
//! the gradient of queries in memory adds in any order.
//!
//! The library knows a graph of attention when it sees one, and does it without writing what is in between. So each is written in the form
//! that NVIDIA's own frontend gives it, operation by operation. Every sequence and head is by itself; how many there are is part of the
//! choice, and they are those of one micro-batch in every world.
//!
//! This file does not know kernels of this crate, nor who owns memory.

use super::super::LibraryError;
use super::super::attention::{AttentionKey, AttentionPass};
use super::engines::{self, EngineChoice, Plan, Prepared};
use super::graph::{GraphDraft, OperationGraph, Place, Target, Tensor, by_rows};
use super::handle::{CudnnHandle, NAME};
use crate::values::{Half, Storage};
use cudarc::cudnn::sys::{
    cudnnDataType_t as DataType, cudnnPointwiseMode_t as By, cudnnReduceTensorOp_t as Reduced,
};
use dtrain_engine::device::Mask;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ptr;

/// A choice, written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedAttention {
    /// What it is for.
    pub key: AttentionKey,
    /// Which engine, and how it is set.
    pub choice: EngineChoice,
    /// Bytes of workspace that the library needs.
    pub workspace: u64,
    /// The version of the library that chose.
    pub version: u64,
}

/// The tensors of a graph that are told when it is run.
#[derive(Clone, Copy)]
struct AttentionTensors {
    /// Queries, keys and values.
    qkv: [Tensor; 3],
    y: Tensor,
    saved: Tensor,
    scale: Tensor,
    /// What stands for a key that is not seen, if there are such.
    unseen: Option<Tensor>,
    gradient: Option<GradientTensors>,
}

#[derive(Clone, Copy)]
struct GradientTensors {
    dy: Tensor,
    dqkv: [Tensor; 3],
    /// The sums of `y dy`.
    sums: Tensor,
    one: Tensor,
}

/// Four sizes or strides, in elements.
type Four = [i64; 4];

/// What a graph is written with: the sizes of a key, as the library counts.
struct Writer {
    draft: GraphDraft,
    numbers: DataType,
    mask: Mask,
    /// `[batch, heads, time, head]`.
    rows: Four,
    /// Of queries with keys.
    scores: Four,
    /// One number for each query.
    queries: Four,
    /// Of queries, keys and values.
    packed: Four,
    /// Of an output.
    out: Four,
}

const F32: DataType = DataType::CUDNN_DATA_FLOAT;

/// A matrix's last two axes the other way round.
fn turned([a, b, c, d]: Four) -> Four {
    [a, b, d, c]
}

impl Writer {
    fn of(key: &AttentionKey) -> Self {
        let [batch, heads, time, head] = [key.batch, key.heads, key.time, key.head].map(i64::from);
        let numbers = match key.numbers.storage() {
            Storage::Half(Half::Bf16) => DataType::CUDNN_DATA_BFLOAT16,
            Storage::Half(Half::F16) => DataType::CUDNN_DATA_HALF,
            Storage::F32 => F32,
        };
        Self {
            draft: GraphDraft::default(),
            numbers,
            mask: key.mask,
            rows: [batch, heads, time, head],
            scores: [batch, heads, time, time],
            queries: [batch, heads, time, 1],
            packed: [3 * time * heads * head, head, 3 * heads * head, 1],
            out: [time * heads * head, head, heads * head, 1],
        }
    }

    /// Halves in memory.
    fn memory(&mut self, strides: Four) -> Result<Tensor, LibraryError> {
        self.draft.tensor(Place::Memory, self.numbers, &self.rows, &strides)
    }

    /// The same, as keys are multiplied with queries.
    fn memory_turned(&mut self, strides: Four) -> Result<Tensor, LibraryError> {
        self.draft.tensor(Place::Memory, self.numbers, &turned(self.rows), &turned(strides))
    }

    /// One f32 for each query, in memory.
    fn of_queries(&mut self) -> Result<Tensor, LibraryError> {
        self.draft.tensor(Place::Memory, F32, &self.queries, &by_rows(&self.queries))
    }

    fn compute(&mut self, by: By, operands: &[Tensor], sizes: Four) -> Result<Tensor, LibraryError> {
        let y = self.draft.between(F32, &sizes)?;
        self.draft.pointwise(by, F32, operands, y).map(|()| y)
    }

    fn scored(&mut self, by: By, operands: &[Tensor]) -> Result<Tensor, LibraryError> {
        self.compute(by, operands, self.scores)
    }

    fn reduced(&mut self, by: Reduced, x: Tensor) -> Result<Tensor, LibraryError> {
        let y = self.draft.between(F32, &self.queries)?;
        self.draft.reduction(by, x, y).map(|()| y)
    }

    /// Each query with each key, turned.
    fn product(&mut self, queries: Tensor, keys: Tensor) -> Result<Tensor, LibraryError> {
        let scores = self.draft.between(F32, &self.scores)?;
        self.draft.product(queries, keys, scores).map(|()| scores)
    }

    /// What stands for keys that are not seen, where there are some.
    fn unseen(&mut self) -> Result<Option<Tensor>, LibraryError> {
        match self.mask {
            Mask::Causal => self.draft.one().map(Some),
            Mask::None => Ok(None),
        }
    }

    /// Scores of keys that come behind their query become `unseen`, if there is such a thing.
    fn masked(&mut self, scores: Tensor, unseen: Option<Tensor>) -> Result<Tensor, LibraryError> {
        let Some(unseen) = unseen else { return Ok(scores) };
        let (row, column) = (self.draft.index(2, scores)?, self.draft.index(3, scores)?);
        let seen = self.draft.between(DataType::CUDNN_DATA_BOOLEAN, &self.scores)?;
        self.draft.pointwise(
            By::CUDNN_POINTWISE_CMP_GE,
            DataType::CUDNN_DATA_BOOLEAN,
            &[row, column],
            seen,
        )?;
        self.scored(By::CUDNN_POINTWISE_BINARY_SELECT, &[scores, unseen, seen])
    }

    /// Halves of scores, turned: as keys by queries.
    fn scores_turned(&mut self, scores: Tensor) -> Result<Tensor, LibraryError> {
        let [_, heads, rows, columns] = self.scores;
        let strides = [heads * rows * columns, rows * columns, 1, columns];
        let turned = self.draft.tensor(Place::Virtual, self.numbers, &turned(self.scores), &strides)?;
        self.draft.reshape(scores, turned).map(|()| turned)
    }

    fn forward(&mut self) -> Result<AttentionTensors, LibraryError> {
        let (q, k, v) =
            (self.memory(self.packed)?, self.memory_turned(self.packed)?, self.memory(self.packed)?);
        let (y, saved) = (self.memory(self.out)?, self.of_queries()?);
        let (scale, unseen) = (self.draft.one()?, self.unseen()?);
        let scores = self.product(q, k)?;
        let scaled = self.scored(By::CUDNN_POINTWISE_MUL, &[scores, scale])?;
        let masked = self.masked(scaled, unseen)?;
        let top = self.reduced(Reduced::CUDNN_REDUCE_TENSOR_MAX, masked)?;
        let below = self.scored(By::CUDNN_POINTWISE_SUB, &[masked, top])?;
        let exponentials = self.scored(By::CUDNN_POINTWISE_EXP, &[below])?;
        let sum = self.reduced(Reduced::CUDNN_REDUCE_TENSOR_ADD, exponentials)?;
        let log = self.compute(By::CUDNN_POINTWISE_LOG, &[sum], self.queries)?;
        self.draft.pointwise(By::CUDNN_POINTWISE_ADD, F32, &[top, log], saved)?;
        let shares = self.draft.between(self.numbers, &self.scores)?;
        self.draft.pointwise(By::CUDNN_POINTWISE_DIV, F32, &[exponentials, sum], shares)?;
        self.draft.product(shares, v, y)?;
        Ok(AttentionTensors { qkv: [q, k, v], y, saved, scale, unseen, gradient: None })
    }

    fn gradient(&mut self) -> Result<AttentionTensors, LibraryError> {
        let q = self.memory(self.packed)?;
        let (k, v) = (self.memory_turned(self.packed)?, self.memory_turned(self.packed)?);
        let (y, dy) = (self.memory(self.out)?, self.memory(self.out)?);
        let (saved, sums) = (self.of_queries()?, self.of_queries()?);
        let dqkv = [self.memory(self.packed)?, self.memory(self.packed)?, self.memory(self.packed)?];
        let (scale, unseen, one) = (self.draft.one()?, self.unseen()?, self.draft.one()?);
        let [dq, dk, dv] = dqkv;
        // What the softmax takes off each row.
        let products = self.compute(By::CUDNN_POINTWISE_MUL, &[dy, y], self.rows)?;
        let added = self.reduced(Reduced::CUDNN_REDUCE_TENSOR_ADD, products)?;
        self.draft.pointwise(By::CUDNN_POINTWISE_MUL, F32, &[added, one], sums)?;
        // The shares once more.
        let scores = self.product(q, k)?;
        let scaled = self.scored(By::CUDNN_POINTWISE_MUL, &[scores, scale])?;
        let below = self.scored(By::CUDNN_POINTWISE_SUB, &[scaled, saved])?;
        let masked = self.masked(below, unseen)?;
        let shares = self.scored(By::CUDNN_POINTWISE_EXP, &[masked])?;
        let by_keys = self.scores_turned(shares)?;
        self.draft.product(by_keys, dy, dv)?;
        // The gradient of the scores.
        let d_shares = self.product(dy, v)?;
        let less = self.scored(By::CUDNN_POINTWISE_SUB, &[d_shares, sums])?;
        let weighed = self.scored(By::CUDNN_POINTWISE_MUL, &[less, shares])?;
        let d_scores = self.scored(By::CUDNN_POINTWISE_MUL, &[weighed, scale])?;
        let by_keys = self.scores_turned(d_scores)?;
        self.draft.product(by_keys, q, dk)?;
        let keys = self.draft.tensor(Place::Virtual, self.numbers, &self.rows, &self.packed)?;
        self.draft.reshape(k, keys)?;
        self.draft.product(d_scores, keys, dq)?;
        let gradient = Some(GradientTensors { dy, dqkv, sums, one });
        Ok(AttentionTensors { qkv: [q, k, v], y, saved, scale, unseen, gradient })
    }
}

/// The graph of a key.
fn graph_of(key: &AttentionKey, target: Target) -> Result<(OperationGraph, AttentionTensors), LibraryError> {
    let mut writer = Writer::of(key);
    let tensors = match key.pass {
        AttentionPass::Forward => writer.forward()?,
        AttentionPass::Gradient => writer.gradient()?,
    };
    Ok((writer.draft.finished(target)?, tensors))
}

impl CudnnHandle {
    /// The engines for attention that keep the rules of this file, the one that the library thinks fastest first: at most
    /// [`super::CANDIDATES`]. *Blocks* while the library prepares them.
    ///
    /// *Errors*: [`LibraryError::NoAlgorithm`], of a library that has no such graphs too.
    pub fn attention_candidates(&self, key: &AttentionKey) -> Result<Vec<PlannedAttention>, LibraryError> {
        let graph = || graph_of(key, Target::Of(self.handle.what));
        let planned = |Prepared { choice, plan, tensors }| {
            let (workspace, version) = (plan.workspace, self.version);
            PlannedAttention {
                plan,
                tensors,
                pinned: PinnedAttention { key: *key, choice, workspace, version },
            }
        };
        let all: Vec<_> = engines::prepared(graph, key.most_workspace())?.into_iter().map(planned).collect();
        let none = || LibraryError::NoAlgorithm { library: NAME, shape: key.shown() };
        if all.is_empty() { Err(none()) } else { Ok(all) }
    }

    /// Attention by an engine that was pinned, here or elsewhere. *Blocks* while the library prepares it.
    ///
    /// *Errors*: [`LibraryError::Unfit`] if another version chose it, or if the library does not have it.
    pub fn accept_attention(&self, pinned: &PinnedAttention) -> Result<PlannedAttention, LibraryError> {
        let PinnedAttention { key, choice, workspace, version } = pinned;
        let unfit = |why| LibraryError::Unfit { shape: key.shown(), why };
        self.may_use(*version, *workspace, key.most_workspace()).map_err(unfit)?;
        if AttentionKey::of(key.pass, key.numbers, &key.shape()).ok() != Some(*key) {
            return Err(unfit("it is no attention that can be told".to_owned()));
        }
        let (graph, tensors) = graph_of(key, Target::Of(self.handle.what))?;
        let plan = engines::accepted(graph, choice, *workspace)?.map_err(unfit)?;
        Ok(PlannedAttention { plan, tensors, pinned: pinned.clone() })
    }
}

/// Addresses of what attention reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct AttentionPlaces {
    /// Queries, keys and values `[B, T, 3, heads, head]`, in halves.
    pub qkv: u64,
    /// The output `[B, T, heads, head]`, in halves.
    pub y: u64,
    /// The logarithm of each row's sum of exponentials, `[B, heads, T]`, in f32.
    pub saved: u64,
    /// Of a gradient, that of the output and that of `qkv`, in halves, and `[B, heads, T]` of scratch in f32; 0 for an output.
    pub gradient: [u64; 3],
}

/// Attention that can be run.
pub struct PlannedAttention {
    plan: Plan,
    tensors: AttentionTensors,
    pinned: PinnedAttention,
}

// SAFETY: descriptors are the library's own plain memory, and nobody changes them behind `accept_attention`.
unsafe impl Send for PlannedAttention {}

impl fmt::Debug for PlannedAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedAttention").field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

impl PlannedAttention {
    /// How it was chosen.
    #[must_use]
    pub fn pinned(&self) -> &PinnedAttention {
        &self.pinned
    }

    /// Puts it on the handle's stream.
    ///
    /// *Errors*: [`LibraryError::Call`].
    ///
    /// # Safety
    /// The tensors of the key lie at these addresses, and [`PinnedAttention::workspace`] bytes that may be written over, until the stream is
    /// through; nothing else uses what is written until then. The handle is the one that planned it, of the context that is current.
    pub unsafe fn run(
        &self,
        handle: &CudnnHandle,
        at: AttentionPlaces,
        workspace: u64,
    ) -> Result<(), LibraryError> {
        let key = &self.pinned.key;
        let (scale, unseen, one) = (1.0 / (key.head as f32).sqrt(), f32::NEG_INFINITY, 1.0f32);
        let of_host = |number: &f32| ptr::from_ref(number) as u64;
        // Queries, keys and values of a position lie side by side.
        let wide = u64::from(key.heads) * u64::from(key.head) * key.numbers.storage().bytes() as u64;
        let packed = |of: [Tensor; 3], at: u64| [(of[0], at), (of[1], at + wide), (of[2], at + 2 * wide)];
        let AttentionTensors { qkv, y, saved, .. } = self.tensors;
        let [q, k, v] = packed(qkv, at.qkv);
        let (y, saved, scale) = ((y, at.y), (saved, at.saved), (self.tensors.scale, of_host(&scale)));
        let unseen = self.tensors.unseen.map(|tensor| (tensor, of_host(&unseen)));
        let handle = handle.handle.what;
        // SAFETY: the caller's promise; numbers of the host live for the call.
        unsafe {
            match (self.tensors.gradient, unseen) {
                (None, None) => self.plan.run(handle, [q, k, v, y, saved, scale], workspace),
                (None, Some(unseen)) => self.plan.run(handle, [q, k, v, y, saved, scale, unseen], workspace),
                (Some(GradientTensors { dy, dqkv, sums, one: tensor }), unseen) => {
                    let [at_dy, at_dqkv, at_sums] = at.gradient;
                    let [dq, dk, dv] = packed(dqkv, at_dqkv);
                    let (dy, sums, one) = ((dy, at_dy), (sums, at_sums), (tensor, of_host(&one)));
                    match unseen {
                        None => {
                            let all = [q, k, v, y, saved, dy, sums, dq, dk, dv, scale, one];
                            self.plan.run(handle, all, workspace)
                        }
                        Some(unseen) => {
                            let all = [q, k, v, y, saved, dy, sums, dq, dk, dv, scale, unseen, one];
                            self.plan.run(handle, all, workspace)
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cudnn;
    use super::super::graph::tests::hopper;
    use super::*;
    use crate::libraries::Numbers;
    use dtrain_engine::device::AttentionShape;
    use std::path::Path;

    fn keys() -> Vec<AttentionKey> {
        let shape = |batch, time, heads, head, mask| AttentionShape { batch, time, heads, head, mask };
        let (causal, all) = (Mask::Causal, Mask::None);
        let shapes = [
            shape(64, 1024, 12, 64, causal),
            shape(8, 200, 4, 32, causal),
            shape(3, 77, 2, 128, causal),
            shape(256, 197, 12, 64, all),
            shape(8, 65, 4, 32, all),
        ];
        let of = |pass, reads, shape| AttentionKey::of(pass, reads, &shape).expect("it can be told");
        let passes = [AttentionPass::Forward, AttentionPass::Gradient];
        passes
            .into_iter()
            .flat_map(|pass| [Numbers::Bf16, Numbers::F16].map(|reads| (pass, reads)))
            .flat_map(|(pass, reads)| shapes.map(|shape| of(pass, reads, shape)))
            .collect()
    }

    #[test]
    fn the_real_library_where_it_is_knows_attention_when_it_sees_it() {
        let Some(path) = std::env::var_os("DTRAIN_TEST_CUDNN") else { return };
        let library = Cudnn::open(Path::new(&path)).unwrap_or_else(|error| panic!("{error}"));
        println!("cuDNN {}", library.version());
        for key in keys() {
            let all = engines::prepared(|| graph_of(&key, hopper()), key.most_workspace());
            let all = all.unwrap_or_else(|error| panic!("{key:?}: {error}"));
            println!("{key:?}:");
            all.iter().for_each(|one| println!("  {:?} with {} bytes", one.choice, one.plan.workspace));
            assert!(!all.is_empty(), "no engine does {key:?}");
        }
    }
}
