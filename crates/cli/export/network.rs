//! A trained model as data: its stages, its parameters by name, and what stands around it.

use crate::config::Model;
use crate::error::CliError;
use crate::trained::Trained;
use dtrain_data::Preparation;
use dtrain_engine::models::LlamaOptions;
use dtrain_engine::{Description, LossScale, Part, Replica, Section};
use std::collections::BTreeMap;

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values, the last dimension innermost.
    pub values: Vec<f32>,
}

/// A trained model as data.
#[derive(Debug)]
pub struct Network {
    /// Its stages, one after the other.
    pub parts: Vec<Part>,
    /// Parameters and running statistics, by the names of the stages.
    pub parameters: BTreeMap<String, Parameter>,
    /// How samples are prepared for it.
    pub preparation: Preparation,
    /// Where it comes from, for whoever reads a file of it.
    pub about: Vec<(&'static str, String)>,
}

impl Network {
    /// The model of a checkpoint.
    ///
    /// *Errors*: a damaged checkpoint; a stage that no other program knows.
    pub fn of(trained: &Trained) -> Result<Self, CliError> {
        let replica = trained.replica(2)?;
        let Description::Chain(parts) = replica.model().describe() else {
            return Err(CliError::failed("a model is a chain of stages"));
        };
        if let Some(kind) = parts.iter().find_map(|part| own(&part.stage)) {
            let error = CliError::usage(format!("nobody else knows a stage of the kind {kind}"));
            return Err(error.hint("--to safetensors writes its parameters"));
        }
        let tensors = replica.about().layout.tensors.iter().filter(|tensor| tensor.name != LossScale::NAME);
        let parameter = |tensor: &dtrain_engine::Tensor| {
            let state = replica.state();
            let section = match tensor.section {
                Section::Parameters => state.averaged(),
                section => state.section(section),
            };
            let values = section[tensor.range()].to_vec();
            (tensor.name.clone(), Parameter { shape: tensor.shape.clone(), values })
        };
        let about = vec![
            ("run", trained.run.name.clone()),
            ("checkpoint", trained.id.to_string()),
            ("dtrain", crate::arguments::VERSION.to_owned()),
        ];
        let apart = replica.about().layout.frozen.iter().map(|tensor| {
            let values = replica.frozen()[tensor.range()].to_vec();
            (tensor.name.clone(), Parameter { shape: tensor.shape.clone(), values })
        });
        let mut parameters = tensors.map(parameter).chain(apart).collect();
        if let Model::Llama(LlamaOptions { lora: Some(lora), .. }) = &trained.config.model {
            take_in(&mut parameters, lora.scale());
        }
        Ok(Self { parts, parameters, preparation: trained.preparation.clone(), about })
    }

    /// A parameter of a stage. *Panics* if there is none: names and parameters are of one model.
    #[must_use]
    pub fn parameter(&self, stage: &str, name: &str) -> &Parameter {
        let full = joined(stage, name);
        self.parameters.get(&full).unwrap_or_else(|| panic!("the model has no parameter {full}"))
    }
}

/// Takes adapters into the layers that they are beside: `w + s b a`, each element rounded once.
fn take_in(parameters: &mut BTreeMap<String, Parameter>, scale: f32) {
    let names = parameters.keys().filter_map(|name| name.strip_suffix("lora_A.weight"));
    let layers: Vec<String> = names.map(str::to_owned).collect();
    for layer in layers {
        let mut adapter = |which: &str| parameters.remove(&format!("{layer}{which}.weight"));
        let (Some(a), Some(b)) = (adapter("lora_A"), adapter("lora_B")) else { continue };
        let Some(weight) = parameters.get_mut(&format!("{layer}weight")) else { continue };
        let (&[rank, inputs], mut sums) = (&a.shape[..], Vec::new()) else { continue };
        for (row, b) in weight.values.chunks_exact_mut(inputs).zip(b.values.chunks_exact(rank)) {
            sums.clear();
            sums.resize(inputs, 0.0f64);
            for (a, b) in a.values.chunks_exact(inputs).zip(b) {
                sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += f64::from(*a) * f64::from(*b));
            }
            let added = |(w, sum): (&mut f32, &f64)| *w = (f64::from(*w) + f64::from(scale) * sum) as f32;
            row.iter_mut().zip(&sums).for_each(added);
        }
    }
}

/// The name of something inside of something.
#[must_use]
pub fn joined(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("", name) | (name, "") => name.to_owned(),
        _ => format!("{outer}.{inner}"),
    }
}

fn own(stage: &Description) -> Option<&'static str> {
    match stage {
        Description::Own(kind) => Some(kind),
        Description::Residual(inner) => own(inner),
        Description::Projected { branch, shortcut, .. } => own(branch).or_else(|| own(shortcut)),
        Description::Chain(parts) => parts.iter().find_map(|part| own(&part.stage)),
        _ => None,
    }
}
