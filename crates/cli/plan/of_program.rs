//! A replica whose passes another program makes: its model asked for, its state on this host's CPU.

use super::Plan;
use crate::config::{Precision, Rule};
use crate::error::CliError;
use crate::external::{Agreement, Brought, ExternalParts, ExternalProgram, ExternalSetup, Purpose, Updates};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::{ExternalReplica, LossScaling};
use dtrain_types::Fingerprint;

/// A replica of an external model and what is known of it beside.
pub struct ExternalBuilt {
    /// The replica, with its first values.
    pub replica: ExternalReplica<Cpu>,
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

    /// A replica whose passes `program` makes.
    ///
    /// *Blocks* for as long as the program takes. *Errors*: in its words; what the configuration asks for and it has not.
    pub fn external_replica(
        &self,
        program: &'static dyn ExternalProgram,
        purpose: Purpose,
        gpu: Option<u32>,
    ) -> Result<ExternalBuilt, CliError> {
        let config = &self.config;
        let setup = ExternalSetup {
            purpose,
            seed: config.seed,
            threads: config.world.threads,
            gpu,
            precision: config.precision,
            micro_batch: config.batch.micro,
            global_batch: config.batch.global,
            workers: config.workers,
            updates: if config.optimizer.rule == Rule::Torch { Updates::Program } else { Updates::Engine },
        };
        let parts = program.build(&setup).map_err(CliError::failed)?;
        let ExternalParts { model, tensors, parameters, stats, fingerprint, device, mut agreement } = parts;
        let samples = |what: &str, count: u64| (format!("the number of {what}"), count.to_string());
        let held_out = self.opened.val.as_ref().map_or(0, |val| val.len());
        agreement.0.insert(0, samples("samples held out", held_out));
        agreement.0.insert(0, samples("training samples", self.opened.train.len()));
        let scaling = (config.precision == Precision::F16).then(LossScaling::default);
        // The updates are the engine's, on the CPU, whatever the program computes on.
        let cpu = self.cpu()?;
        let replica = ExternalReplica::blank(
            cpu,
            model,
            &tensors,
            scaling,
            (self.optimizer(), &config.optimizer.grouping),
        );
        let mut replica = replica.map_err(|error| self.misfit(&error))?;
        replica.begin_with(&parameters, &stats);
        self.complete(&mut replica)?;
        Ok(ExternalBuilt { replica, fingerprint, device, agreement })
    }
}
