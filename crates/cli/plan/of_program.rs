//! A replica whose passes another program makes: its model asked for, its state on this host's CPU or on a GPU.

use super::Plan;
use crate::config::{Config, CudaList, Offload, Precision, Problem, Rule};
use crate::error::CliError;
use crate::external::{
    Agreement, Brought, BuiltFor, ExternalParts, ExternalProgram, ExternalSetup, Purpose, StatePlace, Updates,
};
use crate::gpus::can_compute_here;
use dtrain_cuda::driver::Gpu;
use dtrain_cuda::{CudaDevice, kernels};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::{DeviceReplica, EngineError, ExternalReplica, LossScaling};
use dtrain_types::{Fingerprint, Wire};
use std::sync::Arc;

/// A replica of an external model and what is known of it beside.
pub struct ExternalBuilt<R = ExternalReplica<Cpu>> {
    /// The replica, with its first values.
    pub replica: R,
    /// By which ranks find out whether they compute alike.
    pub fingerprint: Fingerprint,
    /// What it computes on, for people.
    pub device: String,
    /// What has to be the same in all processes of a run.
    pub agreement: Agreement,
}

impl Plan {
    /// The program that makes the passes, if another one does.
    #[must_use]
    pub fn external(&self) -> Option<&'static dyn ExternalProgram> {
        match self.brought {
            Some(Brought::External(program)) => Some(program),
            Some(Brought::Stages(_)) | None => None,
        }
    }

    /// Says where the state of a program's model lies, if its ranks are on these GPUs; gives what to say of it, if it is in the host's memory and
    /// nobody asked for that.
    ///
    /// *Errors*: GPUs for which there are no kernels, and the state is to be there. *Blocks* while libraries are looked for.
    pub fn choose_offload(&mut self, gpus: Option<&CudaList>) -> Result<Option<String>, Problem> {
        let (Some(program), Some(_)) = (self.external(), gpus) else { return Ok(None) };
        let lacks = match self.config.offload {
            _ if program.built_for() == BuiltFor::Amd => {
                Err("these GPUs are AMD's, and dtrain's own kernels NVIDIA's".to_owned())
            }
            Offload::Auto => can_compute_here(),
            Offload::Nothing | Offload::State => Ok(()),
        };
        let (offload, words) = match (self.config.offload, lacks) {
            (Offload::State, _) => (Offload::State, None),
            (Offload::Auto | Offload::Nothing, Ok(())) => (Offload::Nothing, None),
            (Offload::Auto, Err(why)) => {
                let why = why.lines().next().unwrap_or_default().to_owned();
                (Offload::State, Some(format!("offload auto: the state is in the host's memory: {why}")))
            }
            (Offload::Nothing, Err(why)) => {
                let problem = self.config.problem("offload", why);
                return Err(problem.hint("offload=state makes it in the host's memory"));
            }
        };
        self.offload = offload;
        Ok(words)
    }

    /// Whether ranks on GPUs keep their state there.
    #[must_use]
    pub fn keeps_on_gpus(&self) -> bool {
        self.external().is_none() || self.offload == Offload::Nothing
    }

    /// A configuration with what [`Plan::choose_offload`] came to.
    #[must_use]
    pub fn told_places(&self, config: &Config) -> Config {
        match self.external() {
            Some(_) => config.offloading(self.offload),
            None => config.clone(),
        }
    }

    /// A replica whose passes `program` makes, with its state on this host.
    ///
    /// *Blocks* for as long as the program takes. *Errors*: in its words; what the configuration asks for and it has not.
    pub fn external_replica(
        &self,
        program: &'static dyn ExternalProgram,
        purpose: Purpose,
        gpu: Option<u32>,
    ) -> Result<ExternalBuilt, CliError> {
        let parts = self.external_parts(program, purpose, (gpu, StatePlace::Host))?;
        let ExternalParts { tensors, parameters, stats, fingerprint, device, agreement } = parts;
        // The updates are the engine's, on the CPU, whatever the program computes on.
        let (cpu, rule) = (self.cpu()?, (self.optimizer(), &self.config.optimizer.grouping));
        let replica = ExternalReplica::blank(cpu, program.passes(), &tensors, self.scaling(), rule);
        let mut replica = replica.map_err(|error| self.misfit(&error))?;
        replica.begin_with(&parameters, &stats);
        if self.config.wire != Wire::F32 {
            replica.take_one_at_a_time();
        }
        self.complete(&mut replica)?;
        Ok(ExternalBuilt { replica, fingerprint, device, agreement })
    }

    /// The same with its state on the GPU of this number, on which the program computes.
    ///
    /// *Errors*: also of the GPU; not enough memory.
    pub fn external_on_gpu(
        &self,
        program: &'static dyn ExternalProgram,
        (number, gpu): (u32, &Arc<Gpu>),
    ) -> Result<ExternalBuilt<DeviceReplica<CudaDevice>>, CliError> {
        // The program rounds for itself: what the device keeps is f32.
        let opened =
            CudaDevice::new(gpu, Precision::F32).map_err(|error| CliError::failed(error.to_string()))?;
        let place = StatePlace::Gpu { stream: opened.stream().handle() as u64 };
        let parts = self.external_parts(program, Purpose::Training, (Some(number), place))?;
        let ExternalParts { tensors, parameters, stats, fingerprint, device, agreement } = parts;
        let rule = (self.optimizer(), &self.config.optimizer.grouping);
        let replica =
            DeviceReplica::of_program(opened, program.passes_on_gpu(), &tensors, self.scaling(), rule)
                .and_then(|mut replica| {
                    replica.begin_with(&parameters, &stats)?;
                    Ok(replica)
                });
        let mut replica = replica.map_err(|error| match error {
            EngineError::NoRoom(words) => {
                let words = words.split("\nhint: ").next().unwrap_or_default();
                CliError::failed(format!(
                    "{words}\nhint: offload=state keeps the state in the host's memory; with state=sharded ranks share it out"
                ))
            }
            EngineError::Device(words) => CliError::failed(words),
            error => self.misfit(&error).into(),
        })?;
        self.complete(&mut replica)?;
        let fingerprint = Fingerprint { kernel_revision: kernels::revision(), ..fingerprint };
        Ok(ExternalBuilt { replica, fingerprint, device, agreement })
    }

    fn scaling(&self) -> Option<LossScaling> {
        (self.config.precision == Precision::F16).then(LossScaling::default)
    }

    fn external_parts(
        &self,
        program: &'static dyn ExternalProgram,
        purpose: Purpose,
        (gpu, state): (Option<u32>, StatePlace),
    ) -> Result<ExternalParts, CliError> {
        let config = &self.config;
        let setup = ExternalSetup {
            purpose,
            seed: config.seed,
            threads: config.world.threads,
            gpu,
            state,
            precision: config.precision,
            micro_batch: config.batch.micro,
            global_batch: config.batch.global,
            workers: config.workers,
            updates: if config.optimizer.rule == Rule::Torch { Updates::Program } else { Updates::Engine },
        };
        let mut parts = program.build(&setup).map_err(CliError::failed)?;
        let samples = |what: &str, count: u64| (format!("the number of {what}"), count.to_string());
        let held_out = self.opened.val.as_ref().map_or(0, |val| val.len());
        let agreement = &mut parts.agreement.0;
        agreement.insert(0, samples("samples held out", held_out));
        agreement.insert(0, samples("training samples", self.opened.train.len()));
        Ok(parts)
    }
}
