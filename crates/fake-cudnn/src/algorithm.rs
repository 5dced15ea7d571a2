//! Algorithms: in which order one adds up, what it needs, what it is for.
//!
//! A sum is cut into parts, whose sums go through the workspace where there are more than one, and each part into runs.
//!
//! | number | forward | gradient of the input | gradient of the weights |
//! |---|---|---|---|
//! | 0 | 1 part | 1 part, never twice alike | 1 part, never twice alike |
//! | 1 | 2 parts | 2 parts | 2 parts |
//! | 2 | 3 parts, images only | | |
//! | 3 | | | 3 parts, never twice alike |
//!
//! Engines of graphs have an order of their own ([`Order`]).
//!
//! | math | runs of a part |
//! |---|---|
//! | default, on tensor cores, FMA | 1, 4, 5 |

use crate::numbers::rounded;
use crate::problem::{Pass, Problem};
use crate::status::{BAD_PARAM, NOT_SUPPORTED, Status, demand};
use dtrain_fake_common::numbers::Numbers;
use std::ffi::c_uint;
use std::ops::Range;

/// `CUDNN_TENSOR_OP_MATH`, with and without conversions, and `CUDNN_FMA_MATH`.
const TENSOR: [c_uint; 2] = [1, 2];
const FMA: c_uint = 3;

/// In how many parts an engine cuts a sum, and whether that is the same each time.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub parts: usize,
    pub is_steady: bool,
}

impl Order {
    /// How terms are cut; what is not steady is cut at a place that the turn moves.
    pub fn cut(&self, terms: usize, turn: u64) -> [Range<usize>; 2] {
        let middle = match self {
            Self { parts: 1, .. } => terms,
            Self { is_steady: true, .. } => terms / 2,
            Self { .. } => turn as usize % terms.max(1),
        };
        [0..middle, middle..terms]
    }

    /// A part of a sum as it is kept until the others are there: short sums of products of halves are exact in any order, so what is not
    /// steady is rounded.
    pub fn kept(&self, part: f32) -> f32 {
        if self.is_steady { part } else { rounded(Numbers::Bf16, part) }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Algorithm {
    math: c_uint,
    parts: usize,
    pub is_steady: bool,
    /// Of an engine.
    pub engine: Option<Order>,
}

impl Algorithm {
    /// *Errors*: none of that number, or not for this problem.
    pub fn of(problem: &Problem, number: c_uint, math: c_uint) -> Result<Self, Status> {
        demand(number < count(problem.pass), BAD_PARAM)?;
        let (parts, is_steady) = match (problem.pass, number) {
            (Pass::Forward, 0) => (1, true),
            (Pass::Forward, 2) if problem.is_flat => (3, true),
            (_, 1) => (2, true),
            (Pass::Inputs | Pass::Weights, 0) => (1, false),
            (Pass::Weights, 3) => (3, false),
            _ => return Err(NOT_SUPPORTED),
        };
        Ok(Self { math, parts, is_steady, engine: None })
    }

    /// As an engine of a graph adds up.
    pub fn of_engine(order: Order) -> Self {
        Self { math: 0, parts: 2, is_steady: order.is_steady, engine: Some(order) }
    }

    /// Bytes of workspace.
    pub fn workspace(&self, problem: &Problem) -> usize {
        if self.parts > 1 { self.parts * problem.len() * size_of::<f32>() } else { 0 }
    }

    /// How so many terms are cut; what is not steady has each run cut at a place that `turn` moves.
    pub fn order(&self, terms: usize, turn: u64) -> Vec<Vec<Range<usize>>> {
        if let Some(engine) = self.engine {
            return engine.cut(terms, turn).map(|part| vec![part]).to_vec();
        }
        let cut = |range: Range<usize>, into: usize| {
            let at = move |i: usize| range.start + range.len() * i / into;
            (0..into).map(move |i| at(i)..at(i + 1))
        };
        let moved = |run: Range<usize>| {
            let inside = (!self.is_steady && run.len() > 1).then(|| turn as usize % (run.len() - 1) + 1);
            let middle = run.start + inside.unwrap_or_default();
            [run.start..middle, middle..run.end]
        };
        let runs = match self.math {
            math if TENSOR.contains(&math) => 4,
            FMA => 5,
            _ => 1,
        };
        let of_part = |part| cut(part, runs).flat_map(moved).filter(|run| !run.is_empty()).collect();
        cut(0..terms, self.parts).map(of_part).collect()
    }
}

/// How many numbers the header has, those of transforms included.
pub(crate) fn count(pass: Pass) -> c_uint {
    match pass {
        Pass::Forward => 8,
        Pass::Inputs => 6,
        Pass::Weights => 7,
    }
}
