//! A block of your own, written forward only: a residual block with a squeeze, trained on the digits inside the program.
//!
//! `cargo run --release --example own_block -- epochs=10`

use dtrain::Own;
use dtrain::data::{DigitsOptions, SampleSpec, Source};
use dtrain::engine::cpu::Cpu;
use dtrain::engine::stages::{AvgPool, BatchNorm, Chain, Conv2d, Expr, Flatten, Linear, Traced};
use std::process::ExitCode;

/// `x + f(x) * gate(f(x))`: the gate says of each channel how much of it counts (*Source*: Hu et al., "Squeeze-and-excitation networks",
/// 2017). Nobody writes its gradient.
fn block(channels: usize) -> Traced<Cpu> {
    let conv = move || Conv2d::new(channels, 3).padding(1).without_bias();
    Traced::new(move |x: Expr<Cpu>| {
        let y = x.through("conv1", conv()).through("bn1", BatchNorm::new()).relu();
        let y = y.through("conv2", conv()).through("bn2", BatchNorm::new());
        let mean = y.through("", AvgPool::whole()).through("", Flatten);
        let gate = mean
            .through("squeeze", Linear::new(channels / 4).relu())
            .through("excite", Linear::new(channels));
        (y * gate.sigmoid() + x).relu()
    })
}

fn model(_: &SampleSpec) -> Chain<Cpu> {
    Chain::new()
        .named("stem", Conv2d::new(16, 3).padding(1).relu())
        .named("block1", block(16))
        .named("block2", block(16))
        .named("flatten", Flatten)
        .named("fc", Linear::new(10))
}

fn main() -> ExitCode {
    let data = || dtrain::data::open(&Source::Digits(DigitsOptions::default()));
    dtrain::train_own(Own::new("own_block", data, model))
}
