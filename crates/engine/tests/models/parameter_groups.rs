//! Groups of parameters are updated as if each were alone, with a learning rate of its own.

use crate::cpu;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{MlpOptions, mlp, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    DecayGroup, Grouping, Loss, LrSchedule, Model, ModelReplica, Optimizer, Replica, Rule, Section,
};
use dtrain_types::{Seed, Step};

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
    let rules: [&dyn Fn(f32) -> Rule; 2] = [&sgd, &adamw];
    for rule in rules {
        let none = Grouping::default();
        let grouping = Grouping { lr_factors: vec![("0.*".into(), 0.25)], no_decay: vec!["*.bias".into()] };
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

#[test]
fn a_factor_of_zero_leaves_parameters_as_they_are() {
    let grouping = Grouping { lr_factors: vec![("0.weight".into(), 0.0)], no_decay: Vec::new() };
    let begun = replica(Rule::adamw(), 0.1, &grouping);
    let range = begun.about().layout.tensor("0.weight").expect("it is there").range();
    let before = begun.state().section(Section::Parameters)[range].to_vec();
    assert_eq!(trained(begun)[0], ("0.weight".to_owned(), before));
}
