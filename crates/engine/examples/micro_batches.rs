//! What small micro-batches cost: samples/s of the benchmark workloads at one global batch, cut into 1, 2, 4, ... of
//! them, one after the other and in groups. One thread, no data, no peers.
//!
//! Times are CPU seconds of this thread, so that other work on the machine does not count (its use of the caches does).
//! All cuts have their turn in each round, and the median of the rounds counts.
//!
//! `cargo run --release -p dtrain-engine --example micro_batches [work] [rounds]`

use dtrain_engine::cpu::{Cpu, CpuOptions};
use dtrain_engine::models::peer::{PeerData, Work};
use dtrain_engine::{
    BatchFigures, BatchView, Inputs, MicroBatchGroup, ModelReplica, Replica, Targets, micro_batch,
};
use dtrain_types::{Merger, MicroBatch, MicroRange, Seed, Wire};

/// CPU seconds of this thread so far.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A replica, and the buffers that a rank would lend it.
struct Subject {
    replica: ModelReplica<Cpu>,
    micro_batches: u32,
    buffers: Vec<Vec<f32>>,
    figures: Vec<BatchFigures>,
    seconds: Vec<f64>,
}

impl Subject {
    fn new(work: Work, micro_batches: u32, most: u32) -> Self {
        let device = Cpu::new(CpuOptions::default()).expect("the best instruction set is there");
        let rows = work.batch() / micro_batches as usize;
        let model = work.model_in_groups(&device, rows, most).expect("it fits");
        let replica = ModelReplica::new(device, model, work.optimizer(), Seed(7)).expect("AdamW's defaults");
        let buffers = vec![vec![0.0; replica.about().gradient_len()]; Merger::buffers(micro_batches)];
        let figures = vec![BatchFigures::default(); replica.about().group as usize];
        Self { replica, micro_batches, buffers, figures, seconds: Vec::new() }
    }

    /// One training step, as a rank alone makes it.
    fn step(&mut self, data: &PeerData) {
        let start = now();
        let Self { replica, micro_batches, buffers, figures, .. } = self;
        let step = replica.applied().next();
        let mut merger = Merger::default();
        let mut weight = 0.0;
        for first in (0..*micro_batches).step_by(replica.about().group as usize) {
            let count = replica.about().group.min(*micro_batches - first);
            let figures = &mut figures[..count as usize];
            let gradient = &mut buffers[merger.next_buffer()];
            if count == 1 {
                let batch = part(data, first, *micro_batches);
                figures[0] =
                    micro_batch(replica, step, MicroBatch(first), &batch, gradient).expect("it fits");
            } else {
                let (last, wire) = (first + count - 1, Wire::F32);
                let group =
                    MicroBatchGroup { step, micro_batches: MicroRange { lo: first, hi: last + 1 }, wire };
                for m in first..last {
                    let batch = part(data, m, *micro_batches);
                    replica.prefetch(&group, MicroBatch(m), &batch).expect("it fits");
                }
                replica
                    .compute(&group, &part(data, last, *micro_batches), gradient, figures)
                    .expect("it fits");
            }
            weight += figures.iter().map(|figures| figures.sums.weight).sum::<f64>();
            merger.push_subtree(count, |left, right| add(replica, buffers, left, right));
        }
        merger.finish(|left, right| add(replica, buffers, left, right));
        replica.update(step, &buffers[0], weight, data.batch().rows as u64).expect("it is finite");
        self.seconds.push(now() - start);
    }

    fn median(&mut self) -> f64 {
        self.seconds.sort_by(f64::total_cmp);
        self.seconds[self.seconds.len() / 2]
    }
}

fn add(replica: &ModelReplica<Cpu>, buffers: &mut [Vec<f32>], left: usize, right: usize) {
    let (before, from) = buffers.split_at_mut(right);
    replica.add(Wire::F32, &from[0], &mut before[left]);
}

/// Micro-batch `index` of `of`.
fn part(data: &PeerData, index: u32, of: u32) -> BatchView<'_> {
    fn cut<T>(x: &[T], index: u32, of: u32) -> &[T] {
        let each = x.len() / of as usize;
        &x[index as usize * each..][..each]
    }
    let whole = data.batch();
    let Targets::Classes(classes) = whole.targets else { unreachable!("the peers' targets are classes") };
    BatchView {
        rows: whole.rows / of as usize,
        inputs: match whole.inputs {
            Inputs::Values(values) => Inputs::Values(cut(values, index, of)),
            Inputs::Tokens(tokens) => Inputs::Tokens(cut(tokens, index, of)),
        },
        targets: Targets::Classes(cut(classes, index, of)),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = arguments.first().map_or("", String::as_str);
    let rounds = arguments.get(1).map_or(15, |rounds| rounds.parse().expect("a number of rounds"));
    for work in Work::ALL.into_iter().filter(|work| work.name().contains(wanted)) {
        let data = work.data();
        let cuts = [1, 2, 4, 8, 16].into_iter().filter(|cut| work.batch().is_multiple_of(*cut as usize));
        let mut subjects: Vec<[Subject; 2]> =
            cuts.map(|cut| [1, cut].map(|most| Subject::new(work, cut, most))).collect();
        for _ in 0..rounds {
            subjects.iter_mut().flatten().for_each(|subject| subject.step(&data));
        }
        let one = subjects[0].iter_mut().map(Subject::median).fold(f64::MAX, f64::min);
        println!(
            "{:5} {:>3} {:>14} {:>6} {:>14} {:>6} {:>6}",
            work.name(),
            "M",
            "one by one",
            "",
            "in groups",
            "",
            "of"
        );
        for pair in &mut subjects {
            let [alone, grouped] = pair.each_mut().map(Subject::median);
            let rate = |seconds: f64| work.batch() as f64 / seconds;
            let (cut, group) = (pair[1].micro_batches, pair[1].replica.about().group);
            println!(
                "{:5} {cut:>3} {:>14.1} {:>6.2} {:>14.1} {:>6.2} {group:>6}",
                "",
                rate(alone),
                one / alone,
                rate(grouped),
                one / grouped
            );
        }
    }
}
