//! A trained model for other programs: ONNX, a folder that PyTorch loads with no dtrain installed, or one of Hugging Face's transformers or PEFT.
//!
//! `network.rs` is the model as the engine describes it, with its parameters; `onnx.rs` and `torch.rs` write it down, and do the whole way
//! from raw values to probabilities or numbers in their own unit. `transformers.rs` has models of tokens by the names that they have there, `peft.rs` what was trained beside one.
//! None of them knows how it was trained.

mod network;
mod onnx;
mod onnx_format;
mod peft;
mod torch;
mod transformers;

pub use network::{Network, Parameter};
pub use onnx::onnx;
pub use peft::peft;
pub use torch::torch;
pub use transformers::transformers;
