//! By which arithmetic cuDNN multiplies.

use cudarc::cudnn::sys;
use serde::{Deserialize, Serialize};

/// By which arithmetic the library multiplies. That in which it would convert f32 to halves is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Math {
    /// As it likes: on tensor cores f32 is read as TF32.
    Default,
    /// On tensor cores, if it can.
    Tensor,
    /// Never on tensor cores.
    Fma,
}

impl Math {
    pub(super) fn of(number: u32) -> Option<Self> {
        [(0, Self::Default), (1, Self::Tensor), (3, Self::Fma)]
            .into_iter()
            .find_map(|(n, math)| (n == number).then_some(math))
    }

    pub(super) fn told(self) -> sys::cudnnMathType_t {
        match self {
            Self::Default => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
            Self::Tensor => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
            Self::Fma => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        }
    }
}
