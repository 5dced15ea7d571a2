//! Groups of parameters are updated as if each were alone, with a learning rate of its own.

use crate::cpu;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{MlpOptions, mlp, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchView, DecayGroup, Grouping, Inputs, Loss, LrSchedule, Model, ModelReplica, Optimizer, Replica, Rule,
    Section, Targets, fits, micro_batch,
};
use dtrain_types::{MicroBatch, Seed, Step};

fn replica(rule: Rule, lr: f64, grouping: &Grouping) -> ModelReplica<Cpu> {
    let stages = mlp(&MlpOptions { hidden: vec![7], ..MlpOptions::default() }, 3).expect("it makes sense");
    let model = Model::new(&cpu(), stages, Shape::values(6, &[5]), Loss::cross_entropy()).expect("it fits");
    let model = model.grouped(grouping).expect("there are such parameters");
    let schedule = LrSchedule::constant(lr);
    let optimizer = Optimizer { decays: DecayGroup::All, ..Optimizer::new(rule, schedule) };
    ModelReplica::new(cpu(), model, optimizer, Seed(4)).expect("it makes sense")
}

/// Parameters after three updates, by tensor.
fn trained(mut replica: ModelReplica<Cpu>) -> Vec<(String, Vec<f32>)> {
    for step in 1..=3 {
        let sum = peer::uniform(step, replica.about().gradient_len(), 1.0);
        replica.update(Step(step), &sum, 3.0, 6).expect("it is finite");
    }
    let state = replica.state().section(Section::Parameters);
    let tensors = &replica.about().layout.tensors;
    tensors.iter().map(|tensor| (tensor.name.clone(), state[tensor.range()].to_vec())).collect()
}

#[test]
fn each_group_has_its_learning_rate_and_decays_or_does_not() {
    let sgd = |weight_decay| Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay };
    let adamw = |weight_decay| Rule::AdamW { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay };
    let lion = |weight_decay| Rule::Lion { betas: [0.9, 0.99], weight_decay };
    let rules: [&dyn Fn(f32) -> Rule; 3] = [&sgd, &adamw, &lion];
    for rule in rules {
        let none = Grouping::default();
        let grouping = Grouping {
            lr_factors: vec![("0.*".into(), 0.25)],
            no_decay: vec!["*.bias".into()],
            ..Grouping::default()
        };
        let grouped = trained(replica(rule(0.1), 0.02, &grouping));
        // A quarter of the rate, with decay and without; and all of it.
        let [slow, slow_plain, whole, whole_plain] = [(0.1, 0.005), (0.0, 0.005), (0.1, 0.02), (0.0, 0.02)]
            .map(|(decay, lr)| trained(replica(rule(decay), lr, &none)));
        for (at, (name, values)) in grouped.iter().enumerate() {
            let wanted = match (name.starts_with("0."), name.ends_with("bias")) {
                (true, false) => &slow,
                (true, true) => &slow_plain,
                (false, false) => &whole,
                (false, true) => &whole_plain,
            };
            assert_eq!((name, values), (&wanted[at].0, &wanted[at].1));
        }
        assert_ne!(grouped, whole);
    }
}

/// The gradient of a micro-batch, and where each tensor lies in it.
fn gradient(frozen: &[&str]) -> Vec<(String, Vec<f32>)> {
    let options = MlpOptions { hidden: vec![7, 6], batch_norm: true, ..MlpOptions::default() };
    let stages = mlp(&options, 3).expect("it makes sense");
    let model = Model::new(&cpu(), stages, Shape::values(6, &[5]), Loss::cross_entropy()).expect("it fits");
    let grouping = Grouping { frozen: frozen.iter().map(|it| (*it).into()).collect(), ..Grouping::default() };
    let model = model.grouped(&grouping).expect("there are such parameters");
    let optimizer = Optimizer::new(Rule::adamw(), LrSchedule::constant(0.1));
    let mut replica = ModelReplica::new(cpu(), model, optimizer, Seed(4)).expect("it makes sense");
    let (values, classes) = (peer::uniform(1, 30, 1.0), peer::integers(2, 6, 3));
    let batch = BatchView { rows: 6, inputs: Inputs::Values(&values), targets: Targets::Classes(&classes) };
    let mut sum = vec![f32::NAN; replica.about().gradient_len()];
    micro_batch(&mut replica, Step(1), MicroBatch(0), &batch, &mut sum).expect("it fits");
    let before = replica.state().section(Section::Parameters).to_vec();
    replica.update(Step(1), &sum, 6.0, 6).expect("it is finite");
    let (after, layout) = (replica.state().section(Section::Parameters), &replica.about().layout);
    for tensor in layout.tensors.iter().filter(|tensor| tensor.section == Section::Parameters) {
        let stays = before[tensor.range()] == after[tensor.range()];
        assert_eq!(stays, tensor.frozen, "{}", tensor.name);
    }
    let parameters = layout.tensors.iter().filter(|tensor| tensor.section == Section::Parameters);
    parameters.map(|tensor| (tensor.name.clone(), sum[tensor.range()].to_vec())).collect()
}

#[test]
fn what_is_frozen_has_no_gradient_and_stays_and_the_others_have_the_bits_of_before() {
    let all = gradient(&[]);
    for frozen in
        [&["0.*"][..], &["0.*", "1.*"], &["0.*", "1.*", "3.weight"], &["3.weight"], &["4.*"], &["6.bias"]]
    {
        let some = gradient(frozen);
        for (name, whole) in &all {
            let got = some.iter().find(|(other, _)| other == name).map(|(_, got)| got.clone());
            let is_frozen = frozen.iter().any(|pattern| fits(pattern, name));
            // What is trained in part lies among the others; what lies apart has no gradient.
            let wanted = match (is_frozen, name.as_str()) {
                (false, _) => Some(whole.clone()),
                (true, "6.bias") => Some(vec![0.0; whole.len()]),
                (true, _) => None,
            };
            assert_eq!(got, wanted, "{name} with {frozen:?} frozen");
        }
    }
}

#[test]
fn a_factor_of_zero_leaves_parameters_as_they_are() {
    let grouping = Grouping { lr_factors: vec![("0.weight".into(), 0.0)], ..Grouping::default() };
    let begun = replica(Rule::adamw(), 0.1, &grouping);
    let range = begun.about().layout.tensor("0.weight").expect("it is there").range();
    let before = begun.state().section(Section::Parameters)[range].to_vec();
    assert_eq!(trained(begun)[0], ("0.weight".to_owned(), before));
}
