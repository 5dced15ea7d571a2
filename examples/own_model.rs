//! Data and a stage of your own, trained on all cores with the same bits on any number of ranks.
//!
//! `cargo run --release --example own_model -- ranks=3 epochs=10 optimizer.lr=0.02`

use dtrain::Own;
use dtrain::data::{DataError, Dataset, InputSpec, Opened, SampleSlot, SampleSpec, TargetSpec};
use dtrain::engine::cpu::Cpu;
use dtrain::engine::device::Device;
use dtrain::engine::stage::{ArenaPlan, Backward, Forward, Pass, Shape, Stage};
use dtrain::engine::stages::{Chain, Linear};
use dtrain::types::{Key, MicroBatch, Seed, Site, Step};
use std::process::ExitCode;
use std::sync::Arc;

/// Points of the square, and whether they lie in the ring between two circles.
struct Ring {
    points: u64,
    seed: Seed,
}

impl Dataset for Ring {
    fn len(&self) -> u64 {
        self.points
    }

    fn spec(&self) -> SampleSpec {
        let input = InputSpec::Values { shape: vec![2] };
        SampleSpec { input, target: TargetSpec::Class { classes: 2 } }
    }

    fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        // A number for each place, not a stream: so any rank can read any sample.
        let noise = Key::new(self.seed, Step(index), MicroBatch(0), Site(0));
        let [x, y] = [0, 1].map(|axis| 2.0 * noise.unit_f32(axis) - 1.0);
        sample.values().copy_from_slice(&[x, y]);
        sample.set_class(u32::from((0.2..0.6).contains(&(x * x + y * y))));
        Ok(())
    }
}

/// The stage `y = x * x`.
struct Square;

impl Stage<Cpu> for Square {
    fn kind(&self) -> &'static str {
        "square"
    }

    fn plan(&mut self, _: &Cpu, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        Ok(input.clone())
    }

    fn forward(&self, _: &Pass<'_, Cpu>, io: Forward<'_, Cpu>) {
        io.y.iter_mut().zip(io.x.values()).for_each(|(y, x)| *y = x * x);
    }

    fn backward(&self, _: &Pass<'_, Cpu>, io: Backward<'_, Cpu>) {
        let Some(dx) = io.dx else { return };
        for ((dx, x), dy) in dx.iter_mut().zip(io.x.values()).zip(Cpu::read(&io.dy)) {
            *dx = 2.0 * x * dy;
        }
    }
}

fn data() -> Result<Opened, DataError> {
    let part = |points, seed| Arc::new(Ring { points, seed: Seed(seed) });
    Ok(Opened::new(part(4_000, 1)).with_validation(part(1_000, 2)).with_classes(["outside", "ring"]))
}

fn model(_: &SampleSpec) -> Chain<Cpu> {
    Chain::new().then(Linear::new(16)).then(Square).then(Linear::new(16).relu()).then(Linear::new(2))
}

fn main() -> ExitCode {
    dtrain::train_own(Own::new("ring", data, model))
}
