//! The batches of a rank's micro-batches, in their order: from the loader to the replica, the next one ahead where there is time.
//!
//! It does not know what a batch is computed for.

use crate::broke::{data, engine};
use crate::figures::lend;
use dtrain_data::{Loader, LoanedBatch};
use dtrain_engine::{MicroBatchGroup, Replica};
use dtrain_protocol::Failure;
use dtrain_types::{MicroBatch, Step};

/// The batches of one generation. See the file's comment.
pub struct Batches {
    loader: Loader,
    /// The next batch, if the replica has fetched it.
    ahead: Option<LoanedBatch>,
}

impl Batches {
    /// All that the loader has.
    pub fn of(loader: Loader) -> Self {
        Self { loader, ahead: None }
    }

    /// The batch of the next micro-batch, which is this one. *Blocks* until it is read. *Errors*: of the data.
    pub fn next(&mut self, step: Step, micro_batch: MicroBatch) -> Result<LoanedBatch, Failure> {
        let batch = match self.ahead.take() {
            Some(batch) => batch,
            None => self.loader.next_batch().map_err(data)?.expect("the loader ends with the last step"),
        };
        assert_eq!((batch.step(), batch.micro_batch()), (step, micro_batch), "loader and loop agree");
        Ok(batch)
    }

    /// Gives the replica the batch of the micro-batch after the one that its device works on. One that is not there yet is waited
    /// for when its turn comes, and not under another name. *Errors*: of the device.
    pub fn prefetch(&mut self, replica: &mut dyn Replica) -> Result<(), Failure> {
        self.ahead = self.loader.ready_batch();
        let Some(next) = &self.ahead else { return Ok(()) };
        let group = MicroBatchGroup::of_one(next.step(), next.micro_batch());
        replica.prefetch(&group, next.micro_batch(), &lend(next)).map_err(engine)
    }
}
