//! Models as stages on flat buffers, their losses and optimizers, and the CPU device.
//!
//! Pure: no file, no clock, no socket. This crate does not know ranks, generations or collectives: it is handed
//! offsets of micro-batches and buffers to fill.

pub mod about;
pub mod adam;
pub mod batch;
pub mod cpu;
pub mod describe;
pub mod device;
mod device_conformance;
mod device_feeds;
mod device_fingerprint;
pub mod device_replica;
mod device_shards;
pub mod error;
pub mod external;
pub mod fingerprint;
pub mod flat;
pub mod frozen;
pub mod gathering;
pub mod gradient;
pub mod gradient_check;
pub mod groups;
mod held_update;
pub mod host_device;
pub mod host_state;
pub mod init;
pub mod keeping;
pub mod layout;
pub mod lends_memory;
pub mod loss;
pub mod loss_scale;
pub mod model;
pub mod model_replica;
pub mod models;
pub mod muon;
mod muon_update;
pub mod newton_schulz;
pub mod optimizer;
pub mod own_memory;
pub mod own_metric;
pub mod param_layout;
mod passes;
pub mod program_on_device;
pub mod ranking;
pub mod replica;
pub mod schedule;
pub mod settling;
pub mod sharded_update;
pub mod sharding;
pub mod shared_memory;
pub mod shared_update;
mod sharing;
mod stack;
pub mod stage;
pub mod stages;
pub mod state;
pub mod state_tree;
pub mod update_facts;
pub mod update_info;
pub mod whole_update;
pub mod windows;

pub use about::{About, MemoryTable};
pub use adam::Adam;
pub use batch::{BatchFigures, BatchView, EvaluationCounts, Inputs, Targets};
pub use describe::{Behind, Description, Part, Taken};
pub use device_conformance::{Tolerance, device_conforms};
pub use device_fingerprint::device_fingerprint;
pub use device_replica::DeviceReplica;
pub use error::EngineError;
pub use external::{
    ExternalBatch, ExternalModel, ExternalReplica, ExternalTensor, StateView, external_layout,
};
pub use flat::{Flat, FloatsOnLoan};
pub use frozen::Frozen;
pub use gathering::{BringsParameters, Gathering, OwnParameters, OwnThere};
pub use gradient::{Gradient, MicroBatchGroup};
pub use gradient_check::check_gradients;
pub use groups::{Grouping, MOST_GROUPS, ParameterGroup, Runs, fits};
pub use host_state::HostState;
pub use keeping::{Keeping, Kept, StepOutcome};
pub use layout::{Layout, Section, StageSlice, Tensor};
pub use lends_memory::{LendsMemory, LentFloats};
pub use loss::Loss;
pub use loss_scale::{LossScale, LossScaling};
pub use model::Model;
pub use model_replica::ModelReplica;
pub use muon::{AdjustLr, Muon, hidden_matrices};
pub use newton_schulz::NewtonSchulz;
pub use optimizer::{DecayGroup, Factors, Keeps, Optimizer, Rule};
pub use own_memory::OwnMemory;
pub use own_metric::{OwnCounts, OwnMetric};
pub use program_on_device::{ComputesOn, DevicePlaces, DeviceUpdate, DeviceView, ProgramOnDevice};
pub use ranking::{Areas, MOST_RANKED_CLASSES, Ranking};
pub use replica::{Replica, is_at_fault, micro_batch};
pub use schedule::{Decay, LrScaling, LrSchedule, Span};
pub use settling::{Findings, Normaliser, Settling, UpdateScalars, Verdict};
pub use sharded_update::Sharded;
pub use sharding::{
    Held, HeldState, Lies, Piece, ReducedSum, Sharding, ShardingThere, Words, needed, word_cuts,
};
pub use shared_memory::{
    PARTS, SharedAreas, SharedParts, journal_word, shared_shape, shared_shape_in_blocks, stats_area,
};
pub use shared_update::{Sharer, Sum, UpdateRule};
pub use sharing::{Sharing, UpdateShare};
pub use state::{ModelDigest, State, StateDigest, StateShape};
pub use state_tree::{GroupValue, StateTree};
pub use update_facts::UpdateFacts;
pub use update_info::UpdateInfo;
pub use whole_update::WholeUpdate;
pub use windows::{Begun, Call, Itinerary, Window, Windows};
