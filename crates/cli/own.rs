//! What a program of one's own brings: its data and its model.

use dtrain_cuda::CudaDevice;
use dtrain_data::{DataError, Opened, SampleSpec};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::stages::Chain;

/// The data and the model of a program of one's own: what `data.kind` and `model.kind` `own` mean. With another `data.kind` on its
/// command line the model is trained on those data.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// What the data is called: the name of its runs.
    pub(crate) name: &'static str,
    /// Opens the data.
    pub(crate) data: fn() -> Result<Opened, DataError>,
    /// Makes the model for samples like these.
    pub(crate) model: fn(&SampleSpec) -> Chain<Cpu>,
    /// The same on a GPU, if there is one of it.
    pub(crate) gpu_model: Option<fn(&SampleSpec) -> Chain<CudaDevice>>,
}

impl Own {
    /// Data under this name, and a model for samples like theirs, on the cores.
    #[must_use]
    pub fn new(
        name: &'static str,
        data: fn() -> Result<Opened, DataError>,
        model: fn(&SampleSpec) -> Chain<Cpu>,
    ) -> Self {
        Self { name, data, model, gpu_model: None }
    }

    /// The same, which trains on GPUs too. If `fn model<D: Device>(spec: &SampleSpec) -> Chain<D>` makes the model, this is
    /// `Own::new(name, data, model).on_gpus(model)`.
    #[must_use]
    pub fn on_gpus(self, model: fn(&SampleSpec) -> Chain<CudaDevice>) -> Self {
        Self { gpu_model: Some(model), ..self }
    }
}
