//! By what cuDNN does a convolution, written down: flat, so that what was written before there were engines is read still.
//!
//! It does not know the library's functions.

use super::engines::EngineChoice;
use super::math::Math;
use crate::libraries::convolution::{ConvolutionKey, Form};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who does what lies behind a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// The convolution alone is the library's.
    Alone,
    /// The library adds the bias and applies the activation too, before it rounds.
    Fused,
}

/// By what the library does a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvolutionChoice {
    /// By one of its algorithms, over tensors as they lie.
    Listed {
        /// The library's number of it.
        algorithm: u32,
        /// How it multiplies.
        math: Math,
        /// What is the library's.
        manner: Manner,
    },
    /// By an engine, over copies in which channels lie last. The bias and the activation are not the library's.
    ChannelsLast(EngineChoice),
}

/// A choice, written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct PinnedConvolution {
    /// What it is for.
    pub key: ConvolutionKey,
    /// How it is done.
    pub by: ConvolutionChoice,
    /// Bytes of workspace that the library needs.
    pub workspace: u64,
    /// The version of the library that chose.
    pub version: u64,
}

impl PinnedConvolution {
    /// How the library is told of tensors.
    #[must_use]
    pub fn form(&self) -> Form {
        match self.by {
            ConvolutionChoice::Listed { .. } => Form::AsTheyLie,
            ConvolutionChoice::ChannelsLast(_) => Form::ChannelsLast,
        }
    }

    /// Bytes of memory beside the operands: copies, and behind them the workspace.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.key.copies(self.form()).iter().sum::<u64>() + self.workspace
    }
}

impl fmt::Display for PinnedConvolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            ConvolutionChoice::Listed { algorithm, math, manner } => {
                write!(f, "algorithm {algorithm} {math:?} {manner:?}")?;
            }
            ConvolutionChoice::ChannelsLast(EngineChoice { engine, knobs }) => {
                write!(f, "engine {engine} {knobs:?} with channels last")?;
            }
        }
        write!(f, " with {} MiB", self.workspace >> 20)
    }
}

/// A choice as it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    key: ConvolutionKey,
    algorithm: Option<u32>,
    math: Option<Math>,
    manner: Option<Manner>,
    #[serde(default)]
    engine: Option<EngineChoice>,
    workspace: u64,
    version: u64,
}

impl From<PinnedConvolution> for Written {
    fn from(PinnedConvolution { key, by, workspace, version }: PinnedConvolution) -> Self {
        let none = Self { key, algorithm: None, math: None, manner: None, engine: None, workspace, version };
        match by {
            ConvolutionChoice::Listed { algorithm, math, manner } => {
                Self { algorithm: Some(algorithm), math: Some(math), manner: Some(manner), ..none }
            }
            ConvolutionChoice::ChannelsLast(engine) => Self { engine: Some(engine), ..none },
        }
    }
}

impl TryFrom<Written> for PinnedConvolution {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, &'static str> {
        let Written { key, algorithm, math, manner, engine, workspace, version } = written;
        let by = match (algorithm, math, manner, engine) {
            (Some(algorithm), Some(math), Some(manner), None) => {
                ConvolutionChoice::Listed { algorithm, math, manner }
            }
            (None, None, None, Some(engine)) => ConvolutionChoice::ChannelsLast(engine),
            _ => return Err("a convolution by neither an algorithm nor an engine"),
        };
        Ok(Self { key, by, workspace, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::Numbers;
    use crate::libraries::convolution::tests::key;
    use crate::libraries::convolution::{Behind, Pass};

    #[test]
    fn a_choice_comes_back_from_a_manifest_as_it_was() {
        let (key, version) = (key(Pass::Forward(Behind::BiasRelu)), 91_900);
        assert_eq!(key.numbers, Numbers::Bf16);
        let by = ConvolutionChoice::Listed { algorithm: 1, math: Math::Tensor, manner: Manner::Fused };
        let engine = ConvolutionChoice::ChannelsLast(EngineChoice { engine: 2, knobs: vec![(24, 10)] });
        let pinned = |by| PinnedConvolution { key, by, workspace: 5, version };
        for pinned in [by.clone(), engine].map(pinned) {
            let text = serde_json::to_string(&pinned).expect("plain data");
            assert_eq!(serde_json::from_str::<PinnedConvolution>(&text).expect("what was written"), pinned);
            assert!(text.contains("\"forward\":\"bias_relu\"") && text.contains("\"bf16\""), "{text}");
        }
        // As it was written before there were engines.
        let key = serde_json::to_string(&key).expect("plain data");
        let by_list = "\"algorithm\":1,\"math\":\"tensor\",\"manner\":\"fused\"";
        let old = |by: &str| format!("{{\"key\":{key},{by},\"workspace\":5,\"version\":{version}}}");
        let read = |text: &str| serde_json::from_str::<PinnedConvolution>(text);
        assert_eq!(read(&old(by_list)).expect("what was written"), pinned(by));
        assert!(read(&old("\"algorithm\":1")).is_err_and(|error| error.to_string().contains("neither")));
    }
}
