//! A trained model for other programs: ONNX, or a folder that PyTorch loads with no dtrain installed.
//!
//! `network.rs` is the model as the engine describes it, with its parameters; `onnx.rs` and `torch.rs` write it down. They do
//! the whole way from raw values to probabilities or numbers in their own unit. None of them knows how it was trained.

mod network;
mod onnx;
mod onnx_format;
mod torch;

pub use network::Network;
pub use onnx::onnx;
pub use torch::torch;
