//! Muon is what its authors wrote: matrices of hidden layers by a momentum made orthogonal, all else by AdamW. Held against the same
//! definition in f64; a definition that is a little different does not pass.

use crate::cpu;
use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::models::{MlpOptions, mlp, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    AdjustLr, DecayGroup, Grouping, Layout, Loss, LrSchedule, Model, ModelReplica, Muon, NewtonSchulz,
    Optimizer, Replica, Rule, Section, Tensor, hidden_matrices,
};
use dtrain_types::{Seed, Step};

const LR: f64 = 0.05;
const STEPS: u64 = 5;

/// A wide hidden matrix, a square one, a tall one, and the output layer.
fn model(device: &Cpu, grouping: &Grouping) -> Model<Cpu> {
    let options = MlpOptions { hidden: vec![7, 7, 20], batch_norm: true, ..MlpOptions::default() };
    let stages = mlp(&options, 3).expect("it makes sense");
    let model = Model::new(device, stages, Shape::values(6, &[12]), Loss::cross_entropy()).expect("it fits");
    model.grouped(grouping).expect("there are such parameters")
}

fn replica_on(device: Cpu, muon: Muon, grouping: &Grouping) -> ModelReplica<Cpu> {
    let optimizer = Optimizer {
        decays: DecayGroup::Matrices,
        clip_norm: Some(2.0),
        ema: Some(0.9),
        ..Optimizer::new(Rule::Muon(muon), LrSchedule::constant(LR))
    };
    let model = model(&device, grouping);
    ModelReplica::new(device, model, optimizer, Seed(4)).expect("it makes sense")
}

fn gradient(step: u64, elements: usize) -> Vec<f32> {
    peer::uniform(step, elements, 1.0)
}

fn trained(mut replica: ModelReplica<Cpu>) -> ModelReplica<Cpu> {
    for step in 1..=STEPS {
        let sum = gradient(step, replica.about().gradient_len());
        replica.update(Step(step), &sum, 3.0, 6).expect("it is finite");
    }
    replica
}

/// `A B` of matrices with rows one behind the other.
fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let element = |at: usize| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum();
    (0..m * n).map(element).collect()
}

fn transposed(a: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..rows * columns).map(|at| a[at % rows * columns + at / rows]).collect()
}

/// `torch.optim.Muon`'s `_zeropower_via_newtonschulz`, line by line, in f64.
fn orthogonal(matrix: &[f64], [rows, columns]: [usize; 2], how: &NewtonSchulz) -> Vec<f64> {
    let is_tall = rows > columns;
    let mut x = if is_tall { transposed(matrix, [rows, columns]) } else { matrix.to_vec() };
    let (m, n) = (rows.min(columns), rows.max(columns));
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::from(how.epsilon));
    x.iter_mut().for_each(|x| *x /= norm);
    let [a, b, c] = how.coefficients.map(f64::from);
    for _ in 0..how.steps {
        let gram = product(&x, &transposed(&x, [m, n]), [m, n, m]);
        let square = product(&gram, &gram, [m, m, m]);
        let sum: Vec<f64> = gram.iter().zip(square).map(|(gram, square)| b * gram + c * square).collect();
        let more = product(&sum, &x, [m, m, n]);
        x.iter_mut().zip(more).for_each(|(x, more)| *x = a * *x + more);
    }
    if is_tall { transposed(&x, [m, n]) } else { x }
}

/// The parameters after the same updates, in f64.
fn by_definition(muon: &Muon, layout: &Layout, begun: &[f32]) -> Vec<f64> {
    let mut p: Vec<f64> = begun.iter().map(|x| f64::from(*x)).collect();
    let (mut m, mut v) = (vec![0.0; p.len()], vec![0.0; p.len()]);
    for step in 1..=STEPS {
        let sum = gradient(step, layout.gradient_len());
        let g: Vec<f64> = sum[..p.len()].iter().map(|g| f64::from(*g) / 3.0).collect();
        let norm = g.iter().map(|g| g * g).sum::<f64>().sqrt();
        let clip = (2.0 / (norm + 1e-6)).min(1.0);
        for tensor in layout.tensors.iter().filter(|tensor| tensor.section == Section::Parameters) {
            let part = tensor.range();
            let g: Vec<f64> = g[part.clone()].iter().map(|g| g * clip).collect();
            let (p, m, v) = (&mut p[part.clone()], &mut m[part.clone()], &mut v[part]);
            match is_hidden(tensor) {
                true => muon_by_definition(muon, tensor, &g, p, m),
                false => adam_by_definition(muon, (tensor, step), &g, p, m, v),
            }
        }
    }
    p
}

/// All but the last matrix of this perceptron.
fn is_hidden(tensor: &Tensor) -> bool {
    tensor.shape.len() == 2 && tensor.shape[0] > 3
}

fn muon_by_definition(muon: &Muon, tensor: &Tensor, g: &[f64], p: &mut [f64], m: &mut [f64]) {
    let (momentum, lr) = (f64::from(muon.momentum), LR * tensor.lr_factor);
    let shape = [tensor.shape[0], tensor.shape[1]];
    m.iter_mut().zip(g).for_each(|(m, g)| *m += (1.0 - momentum) * (g - *m));
    let ahead = |(m, g): (&f64, &f64)| if muon.nesterov { g + momentum * (m - g) } else { *m };
    let update: Vec<f64> = m.iter().zip(g).map(ahead).collect();
    let ratio = match muon.adjust_lr {
        AdjustLr::Original => (shape[0] as f64 / shape[1] as f64).max(1.0).sqrt(),
        AdjustLr::MatchRmsAdamW => 0.2 * (shape[0].max(shape[1]) as f64).sqrt(),
    };
    let decay = if tensor.never_decays { 0.0 } else { f64::from(muon.weight_decay) };
    for (p, way) in p.iter_mut().zip(orthogonal(&update, shape, &muon.newton_schulz)) {
        *p = *p * (1.0 - lr * decay) - lr * ratio * way;
    }
}

fn adam_by_definition(
    muon: &Muon,
    (tensor, step): (&Tensor, u64),
    g: &[f64],
    p: &mut [f64],
    m: &mut [f64],
    v: &mut [f64],
) {
    let ([beta1, beta2], epsilon) = (muon.adam.betas.map(f64::from), f64::from(muon.adam.epsilon));
    let lr = LR * tensor.lr_factor * muon.adam_lr_factor;
    let decays = tensor.shape.len() == 2 && !tensor.never_decays;
    let decay = if decays { f64::from(muon.adam.weight_decay) } else { 0.0 };
    for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        let (first, second) = (*m / (1.0 - beta1.powi(step as i32)), *v / (1.0 - beta2.powi(step as i32)));
        *p = *p * (1.0 - lr * decay) - lr * first / (second.sqrt() + epsilon);
    }
}

/// The largest difference of a parameter.
fn difference(got: &[f32], wanted: &[f64]) -> f64 {
    got.iter().zip(wanted).map(|(got, wanted)| (f64::from(*got) - wanted).abs()).fold(0.0, f64::max)
}

fn options() -> [Muon; 3] {
    let usual = Muon { adam_lr_factor: 0.25, ..Muon::default() };
    let other = NewtonSchulz { steps: 3, coefficients: [3.0, -3.2, 1.2], epsilon: 1e-7 };
    [
        usual,
        Muon { nesterov: false, adjust_lr: AdjustLr::MatchRmsAdamW, ..usual },
        Muon { momentum: 0.8, weight_decay: 0.3, newton_schulz: other, ..usual },
    ]
}

#[test]
fn its_updates_are_those_of_the_definition_in_f64() {
    let grouping = Grouping {
        lr_factors: vec![("3.*".into(), 0.5)],
        no_decay: vec!["0.weight".into()],
        ..Grouping::default()
    };
    for muon in options() {
        let replica = replica_on(cpu(), muon, &grouping);
        let (begun, layout) =
            (replica.state().section(Section::Parameters).to_vec(), replica.about().layout.clone());
        let replica = trained(replica);
        let got = replica.state().section(Section::Parameters);
        let wanted = by_definition(&muon, &layout, &begun);
        let most = difference(got, &wanted);
        assert!(most < 2e-5, "{muon:?}: {most}");
        // A definition that is a little different is another one.
        let [a, b, c] = muon.newton_schulz.coefficients;
        let coefficients = NewtonSchulz { coefficients: [a, b, c + 0.01], ..muon.newton_schulz };
        for mutant in [
            Muon { nesterov: !muon.nesterov, ..muon },
            Muon { newton_schulz: coefficients, ..muon },
            Muon {
                newton_schulz: NewtonSchulz { steps: muon.newton_schulz.steps + 1, ..muon.newton_schulz },
                ..muon
            },
            Muon { momentum: muon.momentum - 0.01, ..muon },
            Muon { weight_decay: muon.weight_decay + 0.01, ..muon },
            Muon { adam_lr_factor: 0.3, ..muon },
            Muon { adam: dtrain_engine::Adam { betas: [0.9, 0.99], ..muon.adam }, ..muon },
        ] {
            let other = difference(got, &by_definition(&mutant, &layout, &begun));
            assert!(other > 1e-4, "{mutant:?} is told from {muon:?} by {other} alone");
        }
    }
}

#[test]
fn its_bits_depend_on_no_thread_and_no_instruction_set() {
    let muon = options()[0];
    let digest = |isa: Isa, threads: usize| {
        let device = Cpu::new(CpuOptions { isa, threads }).expect("this CPU has it");
        trained(replica_on(device, muon, &Grouping::default())).state().state_digest()
    };
    let wanted = digest(Isa::Scalar, 1);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        for threads in [1, 2, 3] {
            assert_eq!(digest(isa, threads), wanted, "{isa:?} on {threads} threads");
        }
    }
}

#[test]
fn it_keeps_a_momentum_of_all_and_second_moments_of_the_others() {
    let replica = replica_on(cpu(), Muon::default(), &Grouping::default());
    let (layout, state) = (&replica.about().layout, replica.about().state.lengths());
    let all = layout.parameters;
    let others = all - (7 * 12 + 7 * 7 + 20 * 7);
    assert_eq!(state, [all, layout.stats, all + others, 0, all]);
    let kept: Vec<&str> = layout.kept.iter().map(|tensor| &*tensor.name).collect();
    assert!(kept.contains(&"m.0.weight") && kept.contains(&"v.9.weight") && !kept.contains(&"v.0.weight"));
}

#[test]
fn what_is_frozen_stays_and_names_may_say_what_is_hidden() {
    let hidden = |replica: &ModelReplica<Cpu>| -> Vec<String> {
        hidden_matrices(&replica.about().layout).iter().map(|tensor| tensor.name.clone()).collect()
    };
    let frozen = Grouping { frozen: vec!["0.*".into()], ..Grouping::default() };
    let replica = replica_on(cpu(), Muon::default(), &frozen);
    assert_eq!(hidden(&replica), ["3.weight", "6.weight"]);
    assert_eq!(replica.about().layout.tensor("0.weight"), None, "it lies apart");
    // What is trained in part lies among the others.
    let frozen = Grouping { frozen: vec!["0.*".into(), "9.weight".into()], ..Grouping::default() };
    let mut replica = replica_on(cpu(), Muon::default(), &frozen);
    let range = replica.about().layout.tensor("9.weight").expect("its bias is trained").range();
    let begun = replica.state().section(Section::Parameters)[range.clone()].to_vec();
    for step in 1..=3 {
        // As the passes leave the gradient of what is frozen.
        let mut sum = gradient(step, replica.about().gradient_len());
        sum[range.clone()].fill(0.0);
        replica.update(Step(step), &sum, 3.0, 6).expect("it is finite");
    }
    assert_eq!(&replica.state().section(Section::Parameters)[range], &begun[..]);
    let named = Grouping { hidden: vec!["3.*".into(), "9.*".into()], ..Grouping::default() };
    assert_eq!(hidden(&replica_on(cpu(), Muon::default(), &named)), ["3.weight", "9.weight"]);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_key_to_change() {
    let refused = |muon: Muon, grouping: &Grouping| {
        let optimizer = Optimizer::new(Rule::Muon(muon), LrSchedule::constant(LR));
        let device = cpu();
        let model = model(&device, grouping);
        match ModelReplica::new(device, model, optimizer, Seed(4)) {
            Ok(_) => panic!("{muon:?} makes no sense"),
            Err(error) => error.to_string(),
        }
    };
    let usual = Muon::default();
    let with = |how: NewtonSchulz| Muon { newton_schulz: how, ..usual };
    let nan = NewtonSchulz { coefficients: [f32::NAN; 3], ..NewtonSchulz::default() };
    for (muon, told) in [
        (Muon { momentum: 1.0, ..usual }, "optimizer.momentum: must be at least 0 and below 1, got 1"),
        (Muon { weight_decay: -0.1, ..usual }, "optimizer.weight_decay: must be at least 0"),
        (Muon { adam_lr_factor: -1.0, ..usual }, "optimizer.adamw_lr_factor: must be at least 0"),
        (
            with(NewtonSchulz { steps: 0, ..NewtonSchulz::default() }),
            "optimizer.ns_steps: must be from 1 to 99",
        ),
        (with(nan), "optimizer.ns_coefficients: must be three finite numbers"),
    ] {
        let got = refused(muon, &Grouping::default());
        assert!(got.starts_with(told), "{got}");
    }
    let biases = Grouping { hidden: vec!["*.bias".into()], ..Grouping::default() };
    assert!(refused(usual, &biases).starts_with("optimizer.matrices: no weight matrix of a hidden layer"));
}
