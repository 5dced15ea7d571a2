//! Launches that are held back and given as graphs: the same bits as one by one, whatever comes between them.

use crate::stand_in::build::compiler;
use crate::support::{Fake, child, gpu, is_child};
use dtrain_cuda::driver::{Buffer, Gpu, Pinned, Stream};
use dtrain_cuda::{CudaDevice, Precision, operations};
use dtrain_engine::models::{GptOptions, gpt2};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchView, DecayGroup, DeviceReplica, Inputs, Keeping, Kept, Loss, LrSchedule, Model, Optimizer, Replica,
    Rule, Targets,
};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};
use std::sync::Arc;

const LEN: usize = 64;

/// What is done to five lists: rows of launches, of which some come again and again, and what may come between them.
struct Program {
    key: Key,
    drawn: u32,
    rounds: usize,
}

impl Program {
    fn new(seed: u64) -> Self {
        Self { key: Key::new(Seed(seed), Step(0), MicroBatch(0), Site(0)), drawn: 0, rounds: 60 }
    }

    fn below(&mut self, bound: u32) -> usize {
        self.drawn += 1;
        self.key.below(self.drawn, bound) as usize
    }

    /// The bits of everything that was read on the way.
    fn run(mut self, gpu: &Arc<Gpu>, stream: &Stream) -> Vec<u32> {
        let new = || Buffer::<f32>::new(gpu.context(), LEN).expect("memory");
        let (mut lists, mut found) = ([(); 5].map(|()| new()), Vec::new());
        lists.iter_mut().for_each(|list| operations::fill(stream, list.write(), 1.0));
        for _ in 0..self.rounds {
            // Four rows of kernels; which lists they take, and with which value, differs now and then.
            let (row, shift) = (self.below(4), if self.below(4) == 0 { self.below(5) } else { 0 });
            let value = [0.5, 0.0, -0.0, 2.0][self.below(4)];
            for launch in 0..4 + 2 * row {
                lists.rotate_left((launch + shift) % 5);
                let [a, b, c, ..] = &mut lists;
                match (row + launch) % 4 {
                    0 => operations::fill(stream, c.write(), value),
                    1 => operations::add(stream, a.read(), b.read(), c.write()),
                    2 => operations::relu(stream, a.read(), c.write()),
                    _ => operations::copy(stream, a.read(), b.write()),
                }
                lists.rotate_right((launch + shift) % 5);
            }
            match self.below(10) {
                0..6 => stream.submit().expect("a stream that works"),
                6 => {
                    // Its memory goes while launches that need it may be held back.
                    let place = self.below(5);
                    lists[place] = new();
                    operations::fill(stream, lists[place].write(), -1.0);
                }
                7 => found.extend(bits(gpu, stream, &lists[self.below(5)])),
                _ => {}
            }
        }
        lists.iter().for_each(|list| found.extend(bits(gpu, stream, list)));
        found
    }
}

fn bits(gpu: &Arc<Gpu>, stream: &Stream, list: &Buffer<f32>) -> Vec<u32> {
    let to = Pinned::<f32>::new(gpu.context(), LEN).expect("memory");
    // SAFETY: both live until the stream is done, in the next line.
    unsafe { stream.copy(list.address(), to.address(), LEN * 4).expect("a stream that works") };
    stream.finish().expect("a stream that works");
    to.read().iter().map(|x| x.to_bits()).collect()
}

/// What the child of the next test does.
#[test]
fn run_programs_in_both_ways() {
    if is_child()
        && let Some(gpu) = gpu()
    {
        let fake = Fake::new();
        for seed in 0..40 {
            let _lazy = (seed % 2 == 1).then(|| fake.lazy());
            let gathering = Stream::gathering(&gpu).expect("a stream");
            let plain = Stream::new(&gpu).expect("a stream");
            let wanted = Program::new(seed).run(&gpu, &plain);
            assert_eq!(Program::new(seed).run(&gpu, &gathering), wanted, "of seed {seed}");
        }
        let calls = ["cuGraphCreate", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch"];
        let [made, changed, run] = calls.map(|name| fake.calls(name));
        assert!(made > 40 && changed > 100 && run > made, "{made} graphs, {changed} changes, {run} runs");
        // So many that the oldest ones have to go.
        let [plain, gathering] =
            [Stream::new(&gpu), Stream::gathering(&gpu)].map(|new| new.expect("a stream"));
        let long = || Program { rounds: 2000, ..Program::new(40) };
        let (wanted, gone) = (long().run(&gpu, &plain), fake.calls("cuGraphExecDestroy"));
        assert_eq!(long().run(&gpu, &gathering), wanted);
        assert!(fake.calls("cuGraphExecDestroy") > gone, "no graph made room for another one");
        assert_eq!(fake.wrong(), "");
        println!("\nwell");
    }
}

#[test]
fn gathered_launches_do_what_they_do_one_by_one() {
    if compiler().is_some() {
        assert!(child("repeats::run_programs_in_both_ways", &[]).contains("well"));
    }
}

#[test]
fn without_a_graph_or_a_change_of_one_launches_go_one_by_one() {
    if compiler().is_some() {
        for fail in [
            "cuGraphInstantiateWithFlags:1:2,cuGraphAddKernelNode_v2:9:2",
            // One that is there cannot be changed.
            "cuGraphExecKernelNodeSetParams_v2:3:910",
        ] {
            assert!(child("repeats::go_on_without_graphs", &[("FAKE_CUDA_FAIL", fail)]).contains("well"));
        }
    }
}

/// What the child of the last test does.
#[test]
fn go_on_without_graphs() {
    if is_child()
        && let Some(gpu) = gpu()
    {
        let fake = Fake::new();
        for seed in 0..2 {
            let [plain, gathering] =
                [Stream::new(&gpu), Stream::gathering(&gpu)].map(|new| new.expect("a stream"));
            let wanted = Program::new(seed).run(&gpu, &plain);
            assert_eq!(Program::new(seed).run(&gpu, &gathering), wanted, "of seed {seed}");
            gathering.finish().expect("nothing has failed");
        }
        let can_be_made = std::env::var("FAKE_CUDA_FAIL").is_ok_and(|fail| fail.contains("SetParams"));
        assert_eq!((fake.calls("cuGraphLaunch") > 0, fake.wrong().as_str()), (can_be_made, ""));
        println!("\nwell");
    }
}

/// A transformer with dropout: every pass has other numbers in some of its launches.
fn replica(device: CudaDevice) -> DeviceReplica<CudaDevice> {
    let options = GptOptions { vocabulary: 20, context: 6, width: 16, layers: 2, heads: 2, dropout: 0.1 };
    let input = Shape::Tokens { rows: 3, time: 6 };
    let model = Model::new(&device, gpt2(&options).expect("it fits"), input, Loss::cross_entropy());
    let optimizer = Optimizer {
        decays: DecayGroup::All,
        clip_norm: Some(1.0),
        ema: Some(0.9),
        ..Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-3))
    };
    DeviceReplica::new(device, model.expect("it fits"), optimizer, Seed(7)).expect("memory")
}

/// Steps of two micro-batches; what the losses and the state are in the end, and `after` each step.
fn train(mut replica: DeviceReplica<CudaDevice>, mut after: impl FnMut()) -> (Vec<u64>, [u8; 32]) {
    let ids: Vec<u32> = (0..18).map(|i| i * 7 % 20).collect();
    let batch = BatchView { rows: 3, inputs: Inputs::Tokens(&ids), targets: Targets::Classes(&ids) };
    assert!(replica.keep(2));
    let mut losses = Vec::new();
    for step in (1..=8).map(Step) {
        let mut weight = 0.0;
        for number in 0..2 {
            let micro = MicroBatch(number as u32);
            replica.begin(step, micro, &batch, Kept::alone(number)).expect("it fits");
            let sums = replica.figures().sums;
            losses.push(sums.loss.to_bits());
            weight += sums.weight;
        }
        replica.add_kept(1, 0);
        replica.update_kept(step, weight, 6).expect("it is finite");
        after();
    }
    (losses, replica.bring_state().expect("a device that works").state_digest())
}

/// What the child of the next test does.
#[test]
fn train_in_both_ways() {
    if is_child()
        && let Some(gpu) = gpu()
    {
        let fake = Fake::new();
        for precision in [Precision::F32, Precision::Bf16] {
            let wanted = train(replica(CudaDevice::one_by_one(&gpu, precision).expect("a stream")), || ());
            assert_eq!(
                fake.calls("cuGraphLaunch") > 0,
                precision == Precision::Bf16,
                "one by one has no graphs"
            );
            let mut counts = Vec::new();
            let count = || {
                let names =
                    ["cuGraphCreate", "cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2", "cuLaunchKernel"];
                counts.push(names.map(|name| fake.calls(name)));
            };
            let found = train(replica(CudaDevice::new(&gpu, precision).expect("a stream")), count);
            assert_eq!(found, wanted, "{precision:?}");
            // The passes into both gradients have their graphs by the fourth step, updates theirs by the sixth. From then on a step is
            // three graphs, in which dropout and the optimizer have other numbers, and no launch by itself.
            let of_step: Vec<[u64; 4]> =
                counts.windows(2).map(|two| std::array::from_fn(|i| two[1][i] - two[0][i])).collect();
            for [made, run, changed, alone] in &of_step[5..] {
                assert!((*made, *run) == (0, 3) && (1..=24).contains(changed) && *alone == 0, "{of_step:?}");
            }
        }
        assert_eq!(fake.wrong(), "");
        println!("\nwell");
    }
}

#[test]
fn a_step_that_comes_again_is_three_graphs_and_has_the_same_bits() {
    if compiler().is_some() {
        assert!(child("repeats::train_in_both_ways", &[]).contains("well"));
    }
}

/// What the child of the next test does.
#[test]
fn fail_in_a_graph() {
    if is_child()
        && let Some(gpu) = gpu()
    {
        let device = CudaDevice::new(&gpu, Precision::F32).expect("a stream");
        let mut lists = [(); 2].map(|()| Buffer::<f32>::new(gpu.context(), LEN).expect("memory"));
        let told = (0..20).find_map(|_| {
            let [a, b] = &mut lists;
            for _ in 0..3 {
                operations::fill(device.stream(), a.write(), 1.0);
                operations::copy(device.stream(), a.read(), b.write());
            }
            device.finish().err()
        });
        let told = told.expect("a kernel failed").to_string();
        assert!(told.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{told}");
        assert!(Fake::new().calls("cuGraphLaunch") > 0);
        assert_eq!(device.check().expect_err("it sticks").to_string(), told);
        println!("\nwell");
    }
}

#[test]
fn a_kernel_that_fails_in_a_graph_is_told_and_sticks() {
    if compiler().is_some() {
        assert!(child("repeats::fail_in_a_graph", &[("FAKE_CUDA_FAIL", "kernel:40:700")]).contains("well"));
    }
}
