//! The gradient of a loss takes the place of the outputs, unless the last stage reads them in its backward pass: then it lies
//! beside them. The bits are the same.

use crate::{compute, cpu};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::Device;
use dtrain_engine::models::{GptOptions, gpt, peer};
use dtrain_engine::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, Pass, Shape, Stage};
use dtrain_engine::stages::{Chain, Flatten, Linear, Relu};
use dtrain_engine::{
    BatchFigures, BatchView, Inputs, Loss, LrSchedule, MicroBatchGroup, Model, ModelReplica, Optimizer,
    Replica, Rule, Section, Targets, micro_batch,
};
use dtrain_types::{MicroBatch, MicroRange, Seed, Step, Wire};

const ROWS: usize = 5;
const INPUTS: usize = 6;
const OUTPUTS: usize = 7;

/// Nothing but a copy, that looks at its output once more in the backward pass.
struct Mirror {
    stacks: bool,
}

impl Stage<Cpu> for Mirror {
    fn kind(&self) -> &'static str {
        "mirror"
    }

    fn needs(&self) -> Needs {
        Needs { output: true, gradient: GradientUse::Reads, view: false }
    }

    fn stacks(&self) -> bool {
        self.stacks
    }

    fn plan(&mut self, _: &Cpu, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        Ok(input.clone())
    }

    fn forward(&self, pass: &Pass<'_, Cpu>, io: Forward<'_, Cpu>) {
        pass.device.copy(io.x.values(), io.y);
    }

    fn backward(&self, pass: &Pass<'_, Cpu>, io: Backward<'_, Cpu>) {
        assert_eq!(io.y, io.x.values(), "the outputs are what they were");
        pass.device.copy(io.dy, io.dx.expect("it is not the first"));
    }
}

fn stages() -> Chain<Cpu> {
    Chain::new().then(Linear::new(9).relu()).then(Linear::new(OUTPUTS))
}

fn losses() -> [Loss; 4] {
    let cross_entropy = |label_smoothing, class_weights, ignore_index| Loss::CrossEntropy {
        label_smoothing,
        class_weights,
        ignore_index,
    };
    let weights: Vec<f32> = (1..=OUTPUTS).map(|i| i as f32 * 0.3).collect();
    [
        Loss::MeanSquaredError,
        Loss::cross_entropy(),
        cross_entropy(0.1, Vec::new(), Some(3)),
        cross_entropy(0.2, weights, None),
    ]
}

fn replica(stages: &dyn Fn() -> Chain<Cpu>, loss: &Loss, most: u32) -> ModelReplica<Cpu> {
    let input = Shape::values(ROWS, &[INPUTS]);
    let model = Model::in_groups(&cpu(), || Ok(stages()), input, loss.clone(), most).expect("it fits");
    assert_eq!(model.group(), most as usize);
    let optimizer = Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-2));
    ModelReplica::new(cpu(), model, optimizer, Seed(3)).expect("the options make sense")
}

struct Data {
    values: Vec<f32>,
    targets: Vec<f32>,
    classes: Vec<u32>,
}

impl Data {
    fn new() -> Self {
        Self {
            values: peer::uniform(1, ROWS * INPUTS, 1.0),
            targets: peer::uniform(2, ROWS * OUTPUTS, 1.0),
            classes: peer::integers(3, ROWS, OUTPUTS as u32),
        }
    }

    fn batch(&self, loss: &Loss, rows: usize) -> BatchView<'_> {
        let targets = match loss {
            Loss::MeanSquaredError => Targets::Values(&self.targets[..rows * OUTPUTS]),
            Loss::CrossEntropy { .. } => Targets::Classes(&self.classes[..rows]),
        };
        BatchView { rows, inputs: Inputs::Values(&self.values[..rows * INPUTS]), targets }
    }
}

/// What a pass over all micro-batches that the replica takes at once says, the last of which is short.
fn pass(mut replica: ModelReplica<Cpu>, loss: &Loss) -> (Vec<u32>, Vec<BatchFigures>) {
    let (data, group) = (Data::new(), replica.about().group);
    let mut gradient = vec![f32::NAN; replica.about().gradient_len()];
    let mut figures = vec![BatchFigures::default(); group as usize];
    if group == 1 {
        let batch = data.batch(loss, ROWS - 2);
        figures[0] =
            micro_batch(&mut replica, Step(1), MicroBatch(0), &batch, &mut gradient).expect("it fits");
    } else {
        let rows = |m| if m + 1 == group { ROWS - 2 } else { ROWS };
        let whole = MicroBatchGroup {
            step: Step(1),
            micro_batches: MicroRange { lo: 0, hi: group },
            wire: Wire::F32,
        };
        compute(&mut replica, &whole, |m| data.batch(loss, rows(m)), &mut gradient, &mut figures);
    }
    (gradient.iter().map(|g| g.to_bits()).collect(), figures)
}

#[test]
fn the_gradient_has_the_same_bits_in_place_of_the_outputs_and_beside_them() {
    type Make<'a> = &'a dyn Fn() -> Chain<Cpu>;
    // A view at the end takes nothing but the gradient, so what is in front of it keeps its output for itself.
    let pairs: [(&str, Make<'_>, Make<'_>); 4] = [
        ("a stage that stacks", &stages, &|| stages().then(Mirror { stacks: true })),
        ("a stage that does not", &stages, &|| stages().then(Mirror { stacks: false })),
        ("relu", &|| stages().then(Relu).then(Flatten), &|| stages().then(Relu)),
        ("fused relu", &|| stages().then(Linear::new(OUTPUTS).relu()).then(Flatten), &|| {
            stages().then(Linear::new(OUTPUTS).relu())
        }),
    ];
    for loss in losses() {
        for most in [1, 2, 4] {
            for (name, in_place, beside) in pairs {
                let [got, wanted] =
                    [in_place, beside].map(|stages| pass(replica(stages, &loss, most), &loss));
                assert_eq!(got, wanted, "{name}, {loss:?}, groups of {most}");
                assert!(got.0.iter().any(|bits| *bits != 0), "{name}: there is a gradient");
            }
        }
    }
}

#[test]
fn a_last_stage_that_reads_its_outputs_has_the_gradient_of_differences() {
    const STEP: f32 = 1.0 / 64.0;
    for loss in losses() {
        let (mut replica, data) =
            (replica(&|| Chain::new().then(Linear::new(OUTPUTS).relu()), &loss, 1), Data::new());
        let len = replica.about().gradient_len();
        // Every second output is cut off, and none is so near to zero that a step gets it there.
        let mut start: Vec<f32> = peer::uniform(4, len, 0.1);
        for (output, bias) in start[INPUTS * OUTPUTS..].iter_mut().enumerate() {
            *bias = if output % 2 == 0 { 2.0 } else { -2.0 };
        }
        let mut at = |direction: &[f32], by: f32, gradient: &mut Vec<f32>| {
            let mut state = replica.state().clone();
            let moved = start.iter().zip(direction).map(|(from, to)| from + by * to);
            state.section_mut(Section::Parameters).iter_mut().zip(moved).for_each(|(p, to)| *p = to);
            replica.swap_state(&mut state).expect("memory of the host");
            let figures =
                micro_batch(&mut replica, Step(1), MicroBatch(0), &data.batch(&loss, ROWS), gradient);
            figures.expect("it fits").sums.loss
        };
        let mut gradient = vec![f32::NAN; len];
        at(&start, 0.0, &mut gradient);
        for site in 5..9 {
            let to: Vec<f32> = peer::uniform(site, len, 1.0).iter().map(|x| x.signum()).collect();
            let mut along = |by| at(&to, by, &mut vec![f32::NAN; len]);
            let (near, far) = (along(STEP) - along(-STEP), along(2.0 * STEP) - along(-2.0 * STEP));
            let wanted = (8.0 * near - far) / (12.0 * f64::from(STEP));
            let got: f64 = gradient.iter().zip(&to).map(|(g, to)| f64::from(*g) * f64::from(*to)).sum();
            assert!((got - wanted).abs() <= 1e-3 * wanted.abs() + 1e-3, "{loss:?}: {got}, not {wanted}");
        }
    }
}

fn bytes(replica: &ModelReplica<Cpu>, row: &str) -> u64 {
    let rows = &replica.about().memory.rows;
    rows.iter().find(|(name, _)| *name == row).expect("the table has it").1.0
}

#[test]
fn memory_for_the_gradient_beside_the_outputs_is_there_where_they_are_read() {
    let last = |stage: fn() -> Linear| {
        let stages = move || Chain::new().then(Linear::new(9)).then(stage());
        replica(&stages, &Loss::cross_entropy(), 2)
    };
    let (in_place, beside) = (last(|| Linear::new(OUTPUTS)), last(|| Linear::new(OUTPUTS).relu()));
    assert_eq!(bytes(&beside, "activations"), bytes(&in_place, "activations"));
    let outputs = (2 * ROWS * OUTPUTS * 4) as u64;
    assert_eq!(bytes(&beside, "scratch"), bytes(&in_place, "scratch") + outputs);
}

#[test]
fn a_large_vocabulary_is_paid_for_once() {
    let options =
        GptOptions { vocabulary: 50_257, context: 1024, layers: 1, width: 16, heads: 1, dropout: 0.0 };
    let stages = gpt(&options).expect("the options make sense");
    let model = Model::new(&cpu(), stages, Shape::Tokens { rows: 1, time: 1024 }, Loss::cross_entropy());
    let optimizer = Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-2));
    let replica = ModelReplica::blank(cpu(), model.expect("it fits"), optimizer, Seed(3)).expect("it fits");
    let (outputs, taken) = (1024 * 50_257 * 4, bytes(&replica, "activations") + bytes(&replica, "scratch"));
    assert!((outputs..outputs / 20 * 21).contains(&taken), "{taken} bytes, {outputs} of outputs");
}
