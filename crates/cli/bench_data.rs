//! The data and the models of `dtrain bench step`: what a program of one's own would bring, found by name.
//!
//! A benchmark is a run whose `data.name` is one of these. It does not know who measures it.

use crate::own::Own;
use dtrain_data::{DataError, Dataset, InputSpec, Opened, SampleSlot, SampleSpec, TargetSpec};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::peer::{PeerData, Work};
use dtrain_engine::stages::Chain;
use dtrain_engine::{Inputs, Targets, stage};
use std::sync::Arc;

/// The batches of an epoch: so many that a measurement hardly ends one, and whole steps for up to twelve ranks.
const BATCHES: u64 = 27_720;

/// The workload as data and model.
pub fn own(work: Work) -> Own {
    match work {
        Work::Mlp => of("bench-mlp", || open(Work::Mlp), |_| chain(Work::Mlp)),
        Work::Gpt => of("bench-gpt", || open(Work::Gpt), |_| chain(Work::Gpt)),
        Work::Cnn => of("bench-cnn", || open(Work::Cnn), |_| chain(Work::Cnn)),
        Work::Cnn3d => of("bench-cnn3d", || open(Work::Cnn3d), |_| chain(Work::Cnn3d)),
    }
}

/// The data and the model of this name, if they are a workload's.
pub fn named(name: &str) -> Option<Own> {
    Work::ALL.into_iter().map(own).find(|own| own.name == name)
}

fn of(
    name: &'static str,
    data: fn() -> Result<Opened, DataError>,
    model: fn(&SampleSpec) -> Chain<Cpu>,
) -> Own {
    Own::new(name, data, model)
}

fn open(work: Work) -> Result<Opened, DataError> {
    Ok(Opened::new(Arc::new(OneBatch { data: work.data(), spec: spec(work) })))
}

fn chain(work: Work) -> Chain<Cpu> {
    work.stages(work.batch()).expect("the options of a workload are fixed").0
}

fn spec(work: Work) -> SampleSpec {
    let (_, input) = work.stages::<Cpu>(work.batch()).expect("the options of a workload are fixed");
    match input {
        stage::Shape::Tokens { time, .. } => SampleSpec {
            input: InputSpec::Tokens { length: time, vocabulary: 256 },
            target: TargetSpec::ClassPerToken { classes: 256 },
        },
        stage::Shape::Values { dims, .. } => {
            SampleSpec { input: InputSpec::Values { shape: dims }, target: TargetSpec::Class { classes: 10 } }
        }
    }
}

/// The peers' one batch, over and over.
struct OneBatch {
    data: PeerData,
    spec: SampleSpec,
}

impl Dataset for OneBatch {
    fn len(&self) -> u64 {
        self.data.batch().rows as u64 * BATCHES
    }

    fn spec(&self) -> SampleSpec {
        self.spec.clone()
    }

    fn read(
        &self,
        index: u64,
        _: Option<&dtrain_types::Key>,
        sample: &mut SampleSlot<'_>,
    ) -> Result<(), DataError> {
        let batch = self.data.batch();
        let row = (index % batch.rows as u64) as usize;
        let of = |len: usize| row * (len / batch.rows)..(row + 1) * (len / batch.rows);
        let Targets::Classes(classes) = batch.targets else { unreachable!("the peers' targets are classes") };
        match batch.inputs {
            Inputs::Values(values) => {
                sample.values().copy_from_slice(&values[of(values.len())]);
                sample.set_class(classes[row]);
            }
            Inputs::Tokens(tokens) => {
                sample.tokens().copy_from_slice(&tokens[of(tokens.len())]);
                sample.token_classes().copy_from_slice(&classes[of(classes.len())]);
            }
        }
        Ok(())
    }

    fn label(&self, index: u64) -> Option<u32> {
        let batch = self.data.batch();
        let Targets::Classes(classes) = batch.targets else { return None };
        (classes.len() == batch.rows).then(|| classes[(index % batch.rows as u64) as usize])
    }
}
