//! A replica whose passes and updates a program makes where the device's memory is: bit for bit what the same program makes in the host's,
//! also on streams that do nothing before somebody waits for them.

use crate::stand_in::build::compiler;
use crate::support::{Fake, child, gpu, is_child};
use dtrain_cuda::driver::Gpu;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::device::LossSums;
use dtrain_engine::{
    BatchView, ComputesOn, DecayGroup, DevicePlaces, DeviceReplica, DeviceUpdate, DeviceView, EngineError,
    ExternalBatch, ExternalModel, ExternalReplica, ExternalTensor, Gradient, Grouping, Inputs, Keeping, Kept,
    LentFloats, LossScaling, LrSchedule, Optimizer, OwnCounts, OwnMetric, ProgramOnDevice, Replica, Rule,
    Section, StateView, WholeUpdate, micro_batch,
};
use dtrain_types::{MicroBatch, Step, Wire};
use std::sync::Arc;

/// `loss = sum (w x + b - 2 x - 1)^2`, and the greatest `x` it has met, as a running statistic.
struct Line;

/// What a micro-batch comes to: its loss, the gradient, and the statistic times the rows.
fn pass(
    parameters: &[f32],
    stats: &[f32],
    batch: &BatchView<'_>,
    scale: f32,
) -> Result<(f64, [f32; 3]), EngineError> {
    let Inputs::Values(x) = batch.inputs else {
        return Err(EngineError::External("Traceback: no values".into()));
    };
    let &[w, b] = parameters else { panic!("two parameters") };
    let (mut loss, mut to) = (0.0, [0.0f32; 3]);
    for x in x {
        let off = w * x + b - (2.0 * x + 1.0);
        loss += f64::from(off * off);
        (to[0], to[1]) = (to[0] + scale * 2.0 * off * x, to[1] + scale * 2.0 * off);
    }
    to[2] = x.iter().copied().fold(stats[0], f32::max) * x.len() as f32;
    Ok((loss, to))
}

/// Momentum of its own, whose updates it counts: `kept` is the count, then the momentum.
fn update(lr: f64, scale: f32, gradient: &[f32], parameters: &mut [f32], kept: &mut [f32]) {
    let [count, kept @ ..] = kept else { panic!("it keeps something") };
    *count += 1.0;
    for ((p, g), m) in parameters.iter_mut().zip(gradient).zip(kept) {
        *m = 0.9 * *m + g * scale;
        *p -= lr as f32 * *m;
    }
}

impl ExternalModel for Line {
    fn compute(
        &mut self,
        state: StateView<'_>,
        batches: &[ExternalBatch<'_>],
        gradient: &mut dyn Gradient,
        sums: &mut [LossSums],
    ) -> Result<(), EngineError> {
        let ([batch], [sums]) = (batches, sums) else { panic!("one at a time") };
        let (loss, to) = pass(state.parameters, state.stats, &batch.batch, batch.loss_scale)?;
        gradient.part(0..3).copy_from_slice(&to);
        *sums = LossSums { loss, weight: batch.batch.rows as f64, ..LossSums::default() };
        Ok(())
    }

    fn update(&mut self, of: WholeUpdate<'_>) -> Result<(), EngineError> {
        update(of.lr, of.scale, of.gradient, of.parameters, of.kept);
        Ok(())
    }

    fn evaluate(
        &mut self,
        state: StateView<'_>,
        batch: &BatchView<'_>,
        _: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError> {
        let (loss, _) = pass(state.parameters, state.stats, batch, 1.0)?;
        Ok(LossSums { loss, weight: batch.rows as f64, ..LossSums::default() })
    }
}

/// Numbers of the fake driver: its memory is the host's.
fn at(lent: LentFloats) -> &'static [f32] {
    // SAFETY: the replica has lent them to this pass, which ends before anybody writes there.
    unsafe { std::slice::from_raw_parts(lent.address as *const f32, lent.elements) }
}

fn at_mut(lent: LentFloats) -> &'static mut [f32] {
    // SAFETY: the replica has lent them to this pass alone.
    unsafe { std::slice::from_raw_parts_mut(lent.address as *mut f32, lent.elements) }
}

impl ProgramOnDevice for Line {
    fn computes_on(&self) -> ComputesOn {
        ComputesOn::Host
    }

    /// What is final is told by another thread, as PyTorch's hooks tell it.
    fn compute(
        &mut self,
        state: DeviceView,
        _: (Step, MicroBatch),
        batch: &BatchView<'_>,
        to: DevicePlaces,
        settle: &mut (dyn FnMut(usize) + Send),
    ) -> Result<(), EngineError> {
        // SAFETY: it lies there, for this pass to read.
        let scale = to.scale.map_or(1.0, |scale| unsafe { *(scale as *const f32) });
        let (loss, found) = pass(at(state.parameters), at(state.stats), batch, scale)?;
        // SAFETY: three places for f64, for this pass to write.
        unsafe { *(to.sums as *mut [f64; 3]) = [loss, batch.rows as f64, 0.0] };
        let gradient = at_mut(to.gradient);
        for from in [2, 1, 0] {
            gradient[from] = found[from];
            std::thread::scope(|scope| scope.spawn(|| settle(from)).join().expect("nobody panics"));
        }
        Ok(())
    }

    fn update(&mut self, of: DeviceUpdate) -> Result<(), EngineError> {
        update(of.lr, of.scale, at(of.gradient), at_mut(of.parameters), at_mut(of.kept));
        Ok(())
    }

    fn metrics(&self) -> Vec<OwnMetric> {
        Vec::new()
    }

    fn evaluate(
        &mut self,
        state: DeviceView,
        batch: &BatchView<'_>,
        _: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError> {
        let (loss, _) = pass(at(state.parameters), at(state.stats), batch, 1.0)?;
        Ok(LossSums { loss, weight: batch.rows as f64, ..LossSums::default() })
    }
}

fn tensors(rule: Rule) -> Vec<ExternalTensor> {
    let tensor = |name: &str, shape: &[usize], section| ExternalTensor {
        name: name.into(),
        shape: shape.into(),
        section,
    };
    let mut tensors = vec![
        tensor("line.weight", &[1, 1], Section::Parameters),
        tensor("line.bias", &[1], Section::Parameters),
        tensor("greatest", &[], Section::Stats),
    ];
    if rule == Rule::External {
        tensors.push(tensor("updates", &[], Section::First));
        tensors.push(tensor("line.momentum", &[2], Section::First));
    }
    tensors
}

fn optimizer(rule: Rule) -> (Optimizer, Grouping) {
    let schedule = LrSchedule::constant(0.05);
    let optimizer = Optimizer {
        decays: DecayGroup::All,
        ema: Some(0.5),
        clip_norm: Some(2.0),
        ..Optimizer::new(rule, schedule)
    };
    (optimizer, Grouping::default())
}

/// First parameters; of a loss that is scaled such that the first gradients are too large for f32.
fn begun(scaling: Option<LossScaling>) -> ([f32; 2], [f32; 1]) {
    ([if scaling.is_some() { 2e18 } else { 0.5 }, -1.0], [0.25])
}

fn on_host(rule: Rule, scaling: Option<LossScaling>) -> ExternalReplica<Cpu> {
    let cpu = Cpu::new(CpuOptions { isa: Isa::parse("scalar").expect("every CPU has it"), threads: 1 })
        .expect("one thread");
    let (optimizer, grouping) = optimizer(rule);
    let replica =
        ExternalReplica::blank(cpu, Box::new(Line), &tensors(rule), scaling, (optimizer, &grouping));
    let mut replica = replica.expect("options that make sense");
    let (parameters, stats) = begun(scaling);
    replica.begin_with(&parameters, &stats);
    replica
}

fn on_device(gpu: &Arc<Gpu>, rule: Rule, scaling: Option<LossScaling>) -> DeviceReplica<CudaDevice> {
    let device = CudaDevice::new(gpu, Precision::F32).expect("a stream");
    let (optimizer, grouping) = optimizer(rule);
    let replica =
        DeviceReplica::of_program(device, Box::new(Line), &tensors(rule), scaling, (optimizer, &grouping));
    let mut replica = replica.expect("there is memory");
    let (parameters, stats) = begun(scaling);
    replica.begin_with(&parameters, &stats).expect("a device that works");
    replica
}

fn batch(x: &[f32]) -> BatchView<'_> {
    BatchView { rows: x.len(), inputs: Inputs::Values(x), targets: dtrain_engine::Targets::Values(&[]) }
}

const ROWS: [&[f32]; 2] = [&[1.0, 2.0, 3.0], &[-1.0]];

/// A step in the host's memory; gives the loss.
fn step_on_host(replica: &mut ExternalReplica<Cpu>, step: Step) -> f64 {
    let mut gradients = [0, 1].map(|_| vec![f32::NAN; replica.about().gradient_len()]);
    let mut loss = 0.0;
    for (m, (x, gradient)) in ROWS.into_iter().zip(&mut gradients).enumerate() {
        let figures =
            micro_batch(replica, step, MicroBatch(m as u32), &batch(x), gradient).expect("it computes");
        loss += figures.sums.loss;
    }
    let [mut one, two] = gradients;
    replica.add(Wire::F32, &two, &mut one);
    replica.update(step, &one, 4.0, 4).expect("it is finite, or scaled");
    loss
}

/// The same on a device: the second gradient is added to the first as it becomes final.
fn step_on_device(replica: &mut DeviceReplica<CudaDevice>, step: Step) -> f64 {
    let mut loss = 0.0;
    for (m, x) in ROWS.into_iter().enumerate() {
        let merges: &[[usize; 2]] = if m == 1 { &[[0, 1]] } else { &[] };
        let mut told = Vec::new();
        let mut settled = |from: usize| told.push(from);
        let to = Kept { number: m, merges, settled: Some(&mut settled) };
        replica.begin(step, MicroBatch(m as u32), &batch(x), to).expect("it computes");
        assert_eq!(told, [2, 1, 0], "it is told part by part");
        loss += replica.figures().sums.loss;
    }
    replica.update_kept(step, 4.0, 4).expect("it is finite, or scaled");
    loss
}

#[test]
fn a_program_on_a_device_has_the_bits_of_the_same_program_in_the_hosts_memory() {
    if compiler().is_some() {
        let said = child("program::compare_a_program_on_a_device", &[]);
        assert!(said.contains("the same bits"), "{said}");
    }
}

/// What the child of the test above does: alone in its process, as in `digest.rs`.
#[test]
fn compare_a_program_on_a_device() {
    if !is_child() {
        return;
    }
    let Some(gpu) = gpu() else { return };
    let adamw = Rule::AdamW { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 };
    // Its first updates are skipped, and the program is not asked for them.
    let scaled = Some(LossScaling { start: 2.0f32.powi(64), interval: 2 });
    let fake = Fake::new();
    for lazy in [false, true] {
        let _lazy = lazy.then(|| fake.lazy());
        for (rule, scaling) in
            [(adamw, None), (adamw, scaled), (Rule::External, None), (Rule::External, scaled)]
        {
            let (mut near, mut far) = (on_host(rule, scaling), on_device(&gpu, rule, scaling));
            assert!(far.keep(2));
            assert_eq!(
                far.work_ahead(2),
                rule != Rule::External,
                "a program is told whether there is an update"
            );
            for n in 1..=5 {
                let losses = (step_on_host(&mut near, Step(n)), step_on_device(&mut far, Step(n)));
                assert_eq!(losses.0, losses.1, "step {n} by {rule:?}, {scaling:?}");
            }
            let [near, far] = [near.bring_state(), far.bring_state()].map(|state| state.expect("it works"));
            for section in Section::ALL {
                let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(near.section(section)),
                    bits(far.section(section)),
                    "{section:?} by {rule:?}, {scaling:?}"
                );
            }
            if rule == Rule::External {
                let made = if scaling.is_some() { 1.0..5.0 } else { 5.0..6.0 };
                assert!(made.contains(&far.section(Section::First)[0]), "{:?}", far.section(Section::First));
            }
        }
    }
    let mut far = on_device(&gpu, adamw, None);
    let tokens =
        BatchView { rows: 1, inputs: Inputs::Tokens(&[1]), targets: dtrain_engine::Targets::Values(&[]) };
    let error = micro_batch(&mut far, Step(1), MicroBatch(0), &tokens, &mut [0.0; 3]);
    assert_eq!(error, Err(EngineError::External("Traceback: no values".into())));
    println!("the same bits");
}
