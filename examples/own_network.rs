//! A network of your own, made of dtrain's blocks, for whatever data dtrain reads, on the cores or on GPUs.
//!
//! `cargo run --release --example own_network -- epochs=5`
//! `cargo run --release --example own_network -- data.kind=images data.path=photos data.size=32 devices=cuda:0`

use dtrain::Own;
use dtrain::data::{DigitsOptions, SampleSpec, Source};
use dtrain::engine::device::Device;
use dtrain::engine::stages::{AvgPool, BatchNorm, Chain, Conv2d, Flatten, Linear, Relu};
use std::process::ExitCode;

/// Three convolutions and a head for as many classes as the data have. It is made for any device.
fn model<D: Device>(spec: &SampleSpec) -> Chain<D> {
    let mut chain = Chain::new();
    for (number, channels) in [(1, 16), (2, 32), (3, 32)] {
        chain = chain
            .named(&format!("conv{number}"), Conv2d::new(channels, 3).padding(1).without_bias())
            .named(&format!("norm{number}"), BatchNorm::new())
            .then(Relu);
    }
    let outputs = spec.classes().map_or(spec.target_width(), |classes| classes as usize);
    chain.then(AvgPool::whole()).then(Flatten).named("head", Linear::new(outputs))
}

fn main() -> ExitCode {
    let data = || dtrain::data::open(&Source::Digits(DigitsOptions::default()));
    dtrain::train_own(Own::new("network", data, model).on_gpus(model))
}
