//! Which engines there are for a graph, and what a descriptor comes to when it is finished.
//!
//! A graph is attention if it has two products of matrices, or five; or it is a convolution. Engines differ in how they cut the sums of products:
//!
//! | engine | settings | parts of a sum | |
//! |---|---|---|---|
//! | 0 | | | offered, and never for any graph |
//! | 1 | 24 = 3 | 1 | |
//! | 2 | 24 = 7 | 2 | |
//! | 3 | 24 = 7 | 2 | other bits each time: it is offered first, with a note |
//! | 4 | 24 = 9 | 2 | the same, and no note says so |
//!
//! Those that give other bits keep the parts as bf16 in between: short sums of products of halves are exact in any order.

use crate::algorithm::Order;
use crate::knobs::knobs;
use crate::objects::{self, Object};
use crate::part::{Part, kind, name};
use crate::program::Program;
use crate::status::{Answer, BAD_PARAM, NOT_SUPPORTED, Status, demand};
use std::sync::Arc;

/// `CUDNN_KNOB_TYPE_KERNEL_CFG`.
const SETTING: u64 = 24;
/// `CUDNN_NUMERICAL_NOTE_TENSOR_CORE` and `..._NONDETERMINISTIC`.
const NOTES: [u64; 2] = [0, 4];
/// The types of values, by `cudnnBackendAttributeType_t`.
const INT64: u32 = 3;
const KNOB: u32 = 9;
const NOTE: u32 = 11;

/// An engine with its setting.
struct Offer {
    engine: u64,
    setting: u64,
}

const OFFERS: [Offer; 5] = [
    Offer { engine: 3, setting: 7 },
    Offer { engine: 4, setting: 9 },
    Offer { engine: 2, setting: 7 },
    Offer { engine: 0, setting: 1 },
    Offer { engine: 1, setting: 3 },
];

/// *Errors*: none of that number, or it does no graph.
fn order_of(engine: u64) -> Result<Order, Status> {
    match engine {
        1 => Ok(Order { parts: 1, is_steady: true }),
        2 => Ok(Order { parts: 2, is_steady: true }),
        3 | 4 => Ok(Order { parts: 2, is_steady: false }),
        _ => Err(NOT_SUPPORTED),
    }
}

/// The same of the engine of a plan.
pub(crate) fn order_of_plan(plan: &Part) -> Result<Order, Status> {
    let configuration = plan.part(name::PLAN_CONFIGURATION, kind::CONFIGURATION)?;
    order_of(configuration.part(name::CONFIGURATION_ENGINE, kind::ENGINE)?.number(name::ENGINE_NUMBER)?)
}

/// An engine as the library answers it.
fn engine(graph: &Arc<Part>, number: u64) -> Part {
    let mut engine = Part::finished(kind::ENGINE);
    engine.put_part(name::ENGINE_GRAPH, graph.clone());
    engine.put_number(name::ENGINE_NUMBER, INT64, number);
    engine.put_number(name::ENGINE_NOTES, NOTE, NOTES[usize::from(number == 3)]);
    engine
}

fn configuration(graph: &Arc<Part>, offer: &Offer) -> Arc<Part> {
    let mut knob = Part::finished(kind::KNOB_CHOICE);
    knob.put_number(name::KNOB_TYPE, KNOB, SETTING);
    knob.put_number(name::KNOB_VALUE, INT64, offer.setting);
    let mut configuration = Part::finished(kind::CONFIGURATION);
    configuration.put_part(name::CONFIGURATION_ENGINE, Arc::new(engine(graph, offer.engine)));
    configuration.put_part(name::CONFIGURATION_KNOBS, Arc::new(knob));
    Arc::new(configuration)
}

/// What a descriptor comes to.
///
/// *Errors*: something of it was not set, or the library has no such thing.
pub(crate) fn finished(part: &mut Part) -> Answer {
    match part.kind {
        kind::TENSOR => {
            let axes = part.values(name::TENSOR_SIZES).len();
            let told = axes > 0 && part.values(name::TENSOR_STRIDES).len() == axes;
            demand(told, BAD_PARAM)?;
            part.number(name::TENSOR_ID).map(drop)
        }
        kind::GRAPH => {
            let handle = part.number(name::GRAPH_HANDLE)? as usize;
            objects::of(handle, |it| matches!(it, Object::Handle { .. }).then_some(()))?;
            demand(Program::of(part)?.is_known()?, NOT_SUPPORTED)
        }
        kind::HEURISTICS => {
            let graph = part.part(name::HEURISTICS_GRAPH, kind::GRAPH)?.clone();
            // Nothing falls back on anything.
            let is_first = part.number(name::HEURISTICS_MODE)? == 3;
            let offers = if is_first && knobs().has.engines { OFFERS.as_slice() } else { &[] };
            let offers = offers.iter().map(|offer| configuration(&graph, offer)).collect();
            part.put_parts(name::HEURISTICS_RESULTS, offers);
            Ok(())
        }
        kind::ENGINE => {
            let number = part.number(name::ENGINE_NUMBER)?;
            order_of(number)?;
            *part = engine(part.part(name::ENGINE_GRAPH, kind::GRAPH)?, number);
            Ok(())
        }
        kind::CONFIGURATION => {
            let number = part.part(name::CONFIGURATION_ENGINE, kind::ENGINE)?.number(name::ENGINE_NUMBER)?;
            let has = |knob: &Arc<Part>| {
                let told = (knob.number(name::KNOB_TYPE)?, knob.number(name::KNOB_VALUE)?);
                let mut known = OFFERS.iter().filter(|offer| offer.engine == number);
                demand(known.any(|offer| told == (SETTING, offer.setting)), NOT_SUPPORTED)
            };
            part.parts(name::CONFIGURATION_KNOBS).iter().try_for_each(has)
        }
        kind::PLAN => {
            let configuration = part.part(name::PLAN_CONFIGURATION, kind::CONFIGURATION)?;
            let engine = configuration.part(name::CONFIGURATION_ENGINE, kind::ENGINE)?;
            order_of(engine.number(name::ENGINE_NUMBER)?)?;
            let workspace = Program::of(engine.part(name::ENGINE_GRAPH, kind::GRAPH)?)?.workspace();
            part.put_number(name::PLAN_WORKSPACE, INT64, workspace as u64);
            Ok(())
        }
        _ => Ok(()),
    }
}
