//! The moving average of the parameters: what it is, who reads it, and where it begins.

use crate::cpu;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{MlpOptions, mlp, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchView, EngineError, EvaluationCounts, Inputs, Loss, LrSchedule, Model, ModelReplica, Optimizer,
    Replica, Rule, Section, State, Targets,
};
use dtrain_types::{Seed, Step};

const ROWS: usize = 6;
const INPUTS: usize = 5;

fn optimizer(rule: Rule, ema: Option<f64>, updates_before: u64) -> Optimizer {
    let schedule = LrSchedule::constant(0.05);
    Optimizer { clip_norm: Some(1.0), ema, updates_before, ..Optimizer::new(rule, schedule) }
}

fn replica(optimizer: Optimizer) -> ModelReplica<Cpu> {
    let stages = mlp(&MlpOptions { hidden: vec![7], ..MlpOptions::default() }, 3).expect("it makes sense");
    let model = Model::new(&cpu(), stages, Shape::values(ROWS, &[INPUTS]), Loss::cross_entropy());
    ModelReplica::new(cpu(), model.expect("it fits"), optimizer, Seed(4)).expect("it makes sense")
}

fn gradient(replica: &ModelReplica<Cpu>, step: u64) -> Vec<f32> {
    peer::uniform(step, replica.about().gradient_len(), 1.0)
}

fn update(replica: &mut ModelReplica<Cpu>, step: u64, gradient: &[f32]) {
    replica.update(Step(step), gradient, 3.0, ROWS as u64).expect("it is finite");
}

fn sgd(momentum: f32) -> Rule {
    Rule::Sgd { momentum, nesterov: false, weight_decay: 0.01 }
}

#[test]
fn it_is_the_average_that_its_definition_says_and_changes_no_parameter() {
    for rule in [Rule::adamw(), sgd(0.9), sgd(0.0)] {
        let (mut plain, mut averaged) =
            (replica(optimizer(rule, None, 0)), replica(optimizer(rule, Some(0.8), 0)));
        let begin = averaged.state().section(Section::Average).to_vec();
        assert_eq!(begin, averaged.state().section(Section::Parameters));
        let mut wanted: Vec<f64> = begin.iter().map(|x| f64::from(*x)).collect();
        for step in 1..=40 {
            let sum = gradient(&plain, step);
            update(&mut plain, step, &sum);
            update(&mut averaged, step, &sum);
            let parameters = averaged.state().section(Section::Parameters);
            assert_eq!(parameters, plain.state().section(Section::Parameters));
            let decay = 0.8f64.min((1.0 + step as f64) / (10.0 + step as f64));
            for (wanted, x) in wanted.iter_mut().zip(parameters) {
                *wanted = decay * *wanted + (1.0 - decay) * f64::from(*x);
            }
        }
        let got = averaged.state().section(Section::Average);
        assert!(got.iter().zip(&wanted).all(|(got, wanted)| (f64::from(*got) - wanted).abs() < 1e-5));
        assert_ne!(got, averaged.state().section(Section::Parameters));
    }
}

#[test]
fn what_is_evaluated_and_predicted_is_the_average() {
    let mut averaged = replica(optimizer(Rule::adamw(), Some(0.9), 0));
    for step in 1..=5 {
        let sum = gradient(&averaged, step);
        update(&mut averaged, step, &sum);
    }
    // A replica that keeps none, whose parameters are the average.
    let mut finished = replica(optimizer(Rule::adamw(), None, 0));
    let mut state = State::zeros(finished.about().state);
    state.section_mut(Section::Parameters).copy_from_slice(averaged.state().averaged());
    finished.swap_state(&mut state).expect("in the host's memory");
    let (values, classes) = (peer::uniform(9, ROWS * INPUTS, 1.0), peer::integers(8, ROWS, 3));
    let batch =
        BatchView { rows: ROWS, inputs: Inputs::Values(&values), targets: Targets::Classes(&classes) };
    let mut told = Vec::new();
    for replica in [&mut averaged, &mut finished] {
        let mut outputs = vec![0.0; ROWS * 3];
        let loss = replica.evaluate(&batch, &mut EvaluationCounts::new(3)).expect("it fits").loss;
        replica.predict(ROWS, Inputs::Values(&values), &mut outputs).expect("it fits");
        told.push((loss, outputs));
    }
    assert_eq!(told[0], told[1]);
}

#[test]
fn a_state_that_is_kept_goes_on_as_if_it_had_never_stopped() {
    for rule in [Rule::adamw(), sgd(0.9), sgd(0.0)] {
        let mut whole = replica(optimizer(rule, Some(0.95), 0));
        let mut kept = State::zeros(whole.about().state);
        for step in 1..=9 {
            let sum = gradient(&whole, step);
            update(&mut whole, step, &sum);
            if step == 4 {
                kept = whole.state().clone();
            }
        }
        let mut forked = replica(optimizer(rule, Some(0.95), 4));
        kept.applied = Step(0);
        forked.swap_state(&mut kept).expect("in the host's memory");
        for step in 5..=9 {
            let sum = gradient(&forked, step);
            update(&mut forked, step - 4, &sum);
        }
        for section in Section::ALL {
            assert_eq!(
                forked.state().section(section),
                whole.state().section(section),
                "{rule:?} {section:?}"
            );
        }
    }
}

#[test]
fn a_share_that_makes_no_sense_is_refused() {
    for ema in [1.0, -0.1, f64::NAN] {
        let refused = optimizer(Rule::adamw(), Some(ema), 0).check().expect_err("it makes no sense");
        assert!(matches!(refused, EngineError::Option { key: "ema", .. }), "{refused}");
    }
}
