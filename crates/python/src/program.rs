//! A program of Python as dtrain sees it: its data are numbers of samples, its model makes passes over flat buffers.
//!
//! The other side is `python/dtrain/_program.py`. What is an exception there comes over as its text.

use crate::lent::lend;
use crate::threads::make_known;
use dtrain::data::{DataError, Dataset, InputSpec, Opened, SampleSlot, SampleSpec, TargetSpec};
use dtrain::engine::device::LossSums;
use dtrain::engine::{
    BatchView, ComputesOn, DevicePlaces, DeviceUpdate, DeviceView, EngineError, ExternalBatch, ExternalModel,
    ExternalTensor, Gradient, Inputs, LentFloats, OwnCounts, OwnMetric, ProgramOnDevice, Section, StateView,
    WholeUpdate,
};
use dtrain::runtime::{Program, Signal};
use dtrain::types::{Digest, Fingerprint, Key, MicroBatch, Step};
use dtrain::{
    Agreement, BuiltFor, ExternalParts, ExternalProgram, ExternalSetup, Purpose, StatePlace, Updates,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Words of a sample: its number in two halves, since a token has 32 bits.
const HALVES: usize = 2;

/// The program of a script. See the file's comment.
pub struct PythonProgram {
    program: Arc<Py<PyAny>>,
    name: String,
    python: Program,
    /// This extension module.
    module: OsString,
}

/// What holds the ranks, or looks at GPUs: this module alone, found where it lies, whatever is imported elsewhere.
const ALONE: &str = "import importlib.util, sys; \
    spec = importlib.util.spec_from_file_location('dtrain._native', sys.argv[1]); \
    module = importlib.util.module_from_spec(spec); \
    spec.loader.exec_module(module); \
    sys.exit(module.alone(sys.argv[1:]))";

impl PythonProgram {
    /// *Errors*: a program without a name.
    pub fn new(
        py: Python<'_>,
        program: Py<PyAny>,
        (path, arguments): (OsString, Vec<OsString>),
    ) -> PyResult<Self> {
        let name = program.getattr(py, "name")?.extract(py)?;
        // What `faulthandler` was told in `_train.py`.
        let stacks = Some(Signal::USR1);
        let environment = one_heap().into_iter().collect();
        let python = Program { path: PathBuf::from(path), arguments, environment, stacks };
        let module = py.import("dtrain._native")?.getattr("__file__")?.extract()?;
        Ok(Self { program: Arc::new(program), name, python, module })
    }
}

/// What a metric is that Python calls so.
fn own_metric(kind: &str, classes: usize) -> OwnMetric {
    match kind {
        "roc_auc" => OwnMetric::RocAuc(classes),
        "average_precision" => OwnMetric::AveragePrecision(classes),
        "mean" => OwnMetric::Mean,
        other => unreachable!("python/dtrain knows no metric that is {other}"),
    }
}

/// Has the C library keep one heap for all threads, unless the user has said how many. Passes are made on a thread of dtrain's: with a heap of
/// its own it would find nothing of what the trial, on the main thread, has given back there, a tenth of what a rank takes.
fn one_heap() -> Option<(OsString, OsString)> {
    let name = "MALLOC_ARENA_MAX";
    std::env::var_os(name).is_none().then(|| (name.into(), "1".into()))
}

impl ExternalProgram for PythonProgram {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn metrics(&self) -> Vec<(String, OwnMetric)> {
        let told = Python::attach(|py| self.program.getattr(py, "own_metrics")?.extract(py));
        let told: Vec<(String, String, usize)> = told.unwrap_or_default();
        told.into_iter().map(|(name, kind, classes)| (name, own_metric(&kind, classes))).collect()
    }

    fn data(&self) -> Result<Opened, String> {
        let lengths = Python::attach(|py| -> PyResult<(u64, Option<u64>)> {
            self.program.call_method0(py, "lengths")?.extract(py)
        });
        let (train, val) = lengths.map_err(words)?;
        let part = |len, reader| Arc::new(Samples { len, program: self.program.clone(), reader });
        let opened = Opened::new(part(train, Reader::Training));
        Ok(match val {
            Some(len) => opened.with_validation(part(len, Reader::Validation)),
            None => opened,
        })
    }

    fn build(&self, setup: &ExternalSetup) -> Result<ExternalParts, String> {
        Python::attach(|py| self.try_build(py, setup)).map_err(words)
    }

    fn passes(&self) -> Box<dyn ExternalModel> {
        Box::new(PythonModel(
            self.program.clone(),
            self.metrics().into_iter().map(|(_, metric)| metric).collect(),
        ))
    }

    fn passes_on_gpu(&self) -> Box<dyn ProgramOnDevice> {
        Box::new(PythonModel(
            self.program.clone(),
            self.metrics().into_iter().map(|(_, metric)| metric).collect(),
        ))
    }

    fn begun(&self, folder: &Path) -> Result<(), String> {
        let told = Python::attach(|py| self.program.call_method1(py, "begun", (folder,)));
        told.map(drop).map_err(words)
    }

    fn rank_program(&self) -> Program {
        self.python.clone()
    }

    fn dtrain_alone(&self) -> Program {
        let words = ["-I", "-S", "-c", ALONE].map(OsString::from);
        let arguments = words.into_iter().chain([self.module.clone()]).collect();
        Program { arguments, stacks: None, ..self.python.clone() }
    }

    fn built_for(&self) -> BuiltFor {
        let told = Python::attach(|py| self.program.getattr(py, "built_for")?.extract::<String>(py));
        match told.as_deref() {
            Ok("nvidia") => BuiltFor::Nvidia,
            Ok("amd") => BuiltFor::Amd,
            _ => BuiltFor::Cpus,
        }
    }

    fn reaches_gpus(&self) -> Result<(), String> {
        let why_not = Python::attach(|py| self.program.call_method0(py, "why_no_gpu")?.extract(py));
        why_not.map_err(words).and_then(|why: Option<String>| why.map_or(Ok(()), Err))
    }
}

impl PythonProgram {
    fn try_build(&self, py: Python<'_>, setup: &ExternalSetup) -> PyResult<ExternalParts> {
        let asked = PyDict::new(py);
        asked.set_item("trains", setup.purpose == Purpose::Training)?;
        asked.set_item("seed", setup.seed.0)?;
        asked.set_item("threads", setup.threads)?;
        asked.set_item("gpu", setup.gpu)?;
        let stream = match setup.state {
            StatePlace::Host => None,
            StatePlace::Gpu { stream } => Some(stream),
        };
        asked.set_item("stream", stream)?;
        asked.set_item("precision", setup.precision.name())?;
        asked.set_item("micro_batch", setup.micro_batch)?;
        asked.set_item("workers", setup.workers)?;
        asked.set_item("updates", setup.updates == Updates::Program)?;
        let made = self.program.bind(py).call_method1("build", (asked,))?;
        let tensors = |part: &str, section| -> PyResult<Vec<ExternalTensor>> {
            let told: Vec<(String, Vec<usize>)> = made.get_item(part)?.extract()?;
            Ok(told.into_iter().map(|(name, shape)| ExternalTensor { name, shape, section }).collect())
        };
        let all = [
            tensors("trained", Section::Parameters)?,
            tensors("statistics", Section::Stats)?,
            tensors("kept", Section::First)?,
        ];
        let (isa, self_test): (String, [u8; 32]) = made.get_item("fingerprint")?.extract()?;
        Ok(ExternalParts {
            tensors: all.into_iter().flatten().collect(),
            parameters: floats(made.get_item("parameters")?.extract()?),
            stats: floats(made.get_item("stats")?.extract()?),
            fingerprint: Fingerprint { isa, self_test: Digest(self_test), kernel_revision: 0 },
            device: made.get_item("device")?.extract()?,
            agreement: Agreement(made.get_item("agreement")?.extract()?),
        })
    }
}

/// The 32-bit words of bytes.
fn words_of(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]])
}

/// Little-endian bytes as numbers.
fn floats(bytes: &[u8]) -> Vec<f32> {
    words_of(bytes).map(f32::from_le_bytes).collect()
}

/// What an exception says. That of the program's own side has the traceback as its text.
fn words(error: PyErr) -> String {
    Python::attach(|py| error.value(py).to_string())
}

/// Which part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Training,
    Validation,
}

/// Samples that only Python reads: here each is its number.
struct Samples {
    len: u64,
    program: Arc<Py<PyAny>>,
    reader: Reader,
}

impl Dataset for Samples {
    fn len(&self) -> u64 {
        self.len
    }

    fn spec(&self) -> SampleSpec {
        let input = InputSpec::Tokens { length: HALVES, vocabulary: u32::MAX };
        SampleSpec { input, target: TargetSpec::Values { width: 0 } }
    }

    fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        sample.tokens().copy_from_slice(&[index as u32, (index >> 32) as u32]);
        Ok(())
    }

    fn announce(&self, (step, micro_batch): (Step, MicroBatch), samples: &mut dyn Iterator<Item = u64>) {
        if self.reader == Reader::Validation {
            return;
        }
        make_known();
        let samples: Vec<u64> = samples.collect();
        // What is wrong with it is told when the micro-batch is computed.
        let _ =
            Python::attach(|py| self.program.call_method1(py, "announce", (step.0, micro_batch.0, samples)));
    }
}

/// The numbers of the samples of a batch.
fn numbers(batch: &BatchView<'_>) -> Vec<u64> {
    let Inputs::Tokens(halves) = batch.inputs else { panic!("the samples of a program are their numbers") };
    halves.chunks_exact(HALVES).map(|half| u64::from(half[0]) | u64::from(half[1]) << 32).collect()
}

/// The passes of the program's model, and its metrics.
struct PythonModel(Arc<Py<PyAny>>, Vec<OwnMetric>);

/// What a pass gives: loss, weight, predictions that were counted, and those that were right.
type Told = (f64, f64, u64, u64);

fn sums((loss, weight, counted, correct): Told) -> LossSums {
    LossSums { loss, weight, counted, correct }
}

/// Where a buffer lies.
fn address(floats: &[f32]) -> usize {
    floats.as_ptr() as usize
}

impl ExternalModel for PythonModel {
    fn compute(
        &mut self,
        state: StateView<'_>,
        batches: &[ExternalBatch<'_>],
        gradient: &mut dyn Gradient,
        sums: &mut [LossSums],
    ) -> Result<(), EngineError> {
        make_known();
        let len = state.parameters.len() + state.stats.len();
        let to = gradient.part(0..len).as_mut_ptr() as usize;
        let one = |of: &ExternalBatch<'_>| ((of.step.0, of.micro_batch.0), numbers(&of.batch));
        let told = lend(&mut |from| gradient.settle(from), || {
            Python::attach(|py| -> PyResult<Vec<Told>> {
                let state = (state.applied.0, address(state.parameters), address(state.stats));
                let given: Vec<_> = batches.iter().map(one).collect();
                self.0.call_method1(py, "compute", (given, state, to, batches[0].loss_scale))?.extract(py)
            })
        });
        let told = told.map_err(|error| EngineError::External(words(error)))?;
        gradient.settle(0);
        sums.iter_mut().zip(told).for_each(|(sums, told)| *sums = self::sums(told));
        Ok(())
    }

    fn at_once(&self) -> u32 {
        let told = Python::attach(|py| self.0.getattr(py, "at_once")?.extract(py));
        told.unwrap_or(1)
    }

    fn update(&mut self, update: WholeUpdate<'_>) -> Result<(), EngineError> {
        let WholeUpdate { lr, scale, gradient, parameters, kept, .. } = update;
        let places = (address(gradient), parameters.as_mut_ptr() as usize, kept.as_mut_ptr() as usize);
        self.made(lr, scale, places)
    }

    fn metrics(&self) -> Vec<OwnMetric> {
        self.1.clone()
    }

    fn evaluate(
        &mut self,
        state: StateView<'_>,
        batch: &BatchView<'_>,
        own: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError> {
        self.measured((state.applied.0, address(state.parameters), address(state.stats)), batch, own)
    }
}

/// What a validation gives: its loss, and what there is to count of each metric of the program's own.
type Measured = (Told, Vec<Counted>);

/// What is counted of a metric.
#[derive(FromPyObject)]
enum Counted {
    /// A sum and its weight.
    Mean((f64, f64)),
    /// The classes of samples as 32-bit numbers, and the outputs of each as floats.
    Order((PyBackedBytes, PyBackedBytes)),
}

/// What is asked alike wherever the state lies: places are addresses there.
impl PythonModel {
    fn made(&self, lr: f64, scale: f32, places: (usize, usize, usize)) -> Result<(), EngineError> {
        make_known();
        let made = Python::attach(|py| self.0.call_method1(py, "update", (lr, scale, places)));
        made.map(drop).map_err(|error| EngineError::External(words(error)))
    }

    fn measured(
        &self,
        state: (u64, usize, usize),
        batch: &BatchView<'_>,
        own: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError> {
        make_known();
        let told = Python::attach(|py| -> PyResult<Measured> {
            self.0.call_method1(py, "evaluate", (state, numbers(batch)))?.extract(py)
        });
        let (told, metrics) = told.map_err(|error| EngineError::External(words(error)))?;
        for (own, metric) in own.iter_mut().zip(metrics) {
            match (own, metric) {
                (OwnCounts::Mean(own), Counted::Mean((value, weight))) => own.add(value, weight),
                (OwnCounts::Order(own), Counted::Order((classes, outputs))) => {
                    let classes: Vec<u32> = words_of(&classes).map(u32::from_le_bytes).collect();
                    own.note(&classes, &floats(&outputs));
                }
                _ => return Err(EngineError::External("a metric is of another kind than it was".into())),
            }
        }
        Ok(sums(told))
    }
}

/// Where memory of a GPU lies.
fn there(lent: LentFloats) -> usize {
    lent.address as usize
}

/// On a GPU: the same calls, with addresses there. What a micro-batch comes to is left there too.
impl ProgramOnDevice for PythonModel {
    fn computes_on(&self) -> ComputesOn {
        let on_queue = Python::attach(|py| self.0.getattr(py, "on_queue")?.extract(py));
        // What cannot be asked is not fast.
        if on_queue.unwrap_or(false) { ComputesOn::Queue } else { ComputesOn::Host }
    }

    fn compute(
        &mut self,
        state: DeviceView,
        (step, micro_batch): (Step, MicroBatch),
        batch: &BatchView<'_>,
        to: DevicePlaces,
        settle: &mut (dyn FnMut(usize) + Send),
    ) -> Result<(), EngineError> {
        make_known();
        let told = lend(settle, || {
            Python::attach(|py| {
                let state = (state.applied.0, state.parameters.address, state.stats.address);
                let places = (to.gradient.address, to.sums, to.scale);
                let given = ((step.0, micro_batch.0), state, places, numbers(batch));
                self.0.call_method1(py, "compute_there", given)
            })
        });
        told.map(drop).map_err(|error| EngineError::External(words(error)))
    }

    fn update(&mut self, update: DeviceUpdate) -> Result<(), EngineError> {
        let DeviceUpdate { lr, scale, gradient, parameters, kept, .. } = update;
        self.made(lr, scale, (there(gradient), there(parameters), there(kept)))
    }

    fn metrics(&self) -> Vec<OwnMetric> {
        self.1.clone()
    }

    fn evaluate(
        &mut self,
        state: DeviceView,
        batch: &BatchView<'_>,
        own: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError> {
        self.measured((state.applied.0, there(state.parameters), there(state.stats)), batch, own)
    }
}
