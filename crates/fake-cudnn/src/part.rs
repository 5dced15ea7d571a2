//! A descriptor of a graph: attributes, by the numbers of `cudnn.h`.

use crate::status::{BAD_PARAM, Status};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `cudnnBackendDescriptorType_t`, as far as it is known here.
pub(crate) mod kind {
    pub(crate) const POINTWISE: u32 = 0;
    pub(crate) const CONVOLUTION: u32 = 1;
    pub(crate) const ENGINE: u32 = 2;
    pub(crate) const CONFIGURATION: u32 = 3;
    pub(crate) const HEURISTICS: u32 = 4;
    pub(crate) const PLAN: u32 = 5;
    pub(crate) const KNOB_CHOICE: u32 = 7;
    pub(crate) const OPERATION_FORWARD: u32 = 10;
    pub(crate) const OPERATION_WEIGHTS: u32 = 11;
    pub(crate) const OPERATION_INPUTS: u32 = 12;
    pub(crate) const OPERATION_POINTWISE: u32 = 13;
    pub(crate) const GRAPH: u32 = 15;
    pub(crate) const PACK: u32 = 16;
    pub(crate) const TENSOR: u32 = 17;
    pub(crate) const PRODUCT: u32 = 18;
    pub(crate) const OPERATION_PRODUCT: u32 = 19;
    pub(crate) const REDUCTION: u32 = 21;
    pub(crate) const OPERATION_REDUCTION: u32 = 22;
    pub(crate) const OPERATION_RESHAPE: u32 = 31;
}

/// `cudnnBackendAttributeName_t`, as far as it is known here.
pub(crate) mod name {
    pub(crate) const POINTWISE_MODE: u32 = 0;
    pub(crate) const POINTWISE_AXIS: u32 = 9;
    pub(crate) const CONVOLUTION_SUMS: u32 = 100;
    pub(crate) const CONVOLUTION_MODE: u32 = 101;
    pub(crate) const CONVOLUTION_DILATION: u32 = 102;
    pub(crate) const CONVOLUTION_STRIDE: u32 = 103;
    pub(crate) const CONVOLUTION_PADDING_BEHIND: u32 = 104;
    pub(crate) const CONVOLUTION_PADDING: u32 = 105;
    pub(crate) const CONVOLUTION_AXES: u32 = 106;
    pub(crate) const HEURISTICS_MODE: u32 = 200;
    pub(crate) const HEURISTICS_GRAPH: u32 = 201;
    pub(crate) const HEURISTICS_RESULTS: u32 = 202;
    pub(crate) const CONFIGURATION_ENGINE: u32 = 300;
    pub(crate) const CONFIGURATION_KNOBS: u32 = 302;
    pub(crate) const PLAN_CONFIGURATION: u32 = 401;
    pub(crate) const PLAN_WORKSPACE: u32 = 402;
    pub(crate) const KNOB_TYPE: u32 = 600;
    pub(crate) const KNOB_VALUE: u32 = 601;
    pub(crate) const OF_FORWARD: u32 = 702;
    pub(crate) const FORWARD_W: u32 = 703;
    pub(crate) const FORWARD_X: u32 = 704;
    pub(crate) const FORWARD_Y: u32 = 705;
    pub(crate) const OF_INPUTS: u32 = 708;
    pub(crate) const INPUTS_W: u32 = 709;
    pub(crate) const INPUTS_DX: u32 = 710;
    pub(crate) const INPUTS_DY: u32 = 711;
    pub(crate) const OF_WEIGHTS: u32 = 714;
    pub(crate) const WEIGHTS_DW: u32 = 715;
    pub(crate) const WEIGHTS_X: u32 = 716;
    pub(crate) const WEIGHTS_DY: u32 = 717;
    pub(crate) const OF_POINTWISE: u32 = 750;
    pub(crate) const POINTWISE_X: u32 = 751;
    pub(crate) const POINTWISE_B: u32 = 752;
    pub(crate) const POINTWISE_Y: u32 = 753;
    pub(crate) const POINTWISE_T: u32 = 758;
    pub(crate) const GRAPH_HANDLE: u32 = 800;
    pub(crate) const GRAPH_OPERATIONS: u32 = 801;
    pub(crate) const TENSOR_NUMBERS: u32 = 901;
    pub(crate) const TENSOR_SIZES: u32 = 902;
    pub(crate) const TENSOR_STRIDES: u32 = 903;
    pub(crate) const TENSOR_ID: u32 = 906;
    pub(crate) const TENSOR_IS_VIRTUAL: u32 = 907;
    pub(crate) const TENSOR_IS_VALUE: u32 = 908;
    pub(crate) const PACK_IDS: u32 = 1000;
    pub(crate) const PACK_POINTERS: u32 = 1001;
    pub(crate) const PACK_WORKSPACE: u32 = 1003;
    pub(crate) const ENGINE_GRAPH: u32 = 1300;
    pub(crate) const ENGINE_NUMBER: u32 = 1301;
    pub(crate) const ENGINE_NOTES: u32 = 1303;
    pub(crate) const PRODUCT_A: u32 = 1520;
    pub(crate) const PRODUCT_B: u32 = 1521;
    pub(crate) const PRODUCT_C: u32 = 1522;
    pub(crate) const OF_PRODUCT: u32 = 1523;
    pub(crate) const REDUCTION_BY: u32 = 1600;
    pub(crate) const REDUCTION_X: u32 = 1610;
    pub(crate) const REDUCTION_Y: u32 = 1611;
    pub(crate) const OF_REDUCTION: u32 = 1612;
    pub(crate) const RESHAPE_X: u32 = 2200;
    pub(crate) const RESHAPE_Y: u32 = 2201;
}

/// Values, with their `cudnnBackendAttributeType_t`.
type Typed = (u32, Vec<u64>);

/// A descriptor.
#[derive(Clone, Default)]
pub(crate) struct Part {
    pub kind: u32,
    values: BTreeMap<u32, Typed>,
    parts: BTreeMap<u32, Vec<Arc<Part>>>,
    pub is_finished: bool,
}

impl Part {
    pub fn new(kind: u32) -> Self {
        Self { kind, ..Self::default() }
    }

    /// One that the library fills.
    pub fn finished(kind: u32) -> Self {
        Self { is_finished: true, ..Self::new(kind) }
    }

    pub fn put_number(&mut self, name: u32, what: u32, value: u64) {
        self.values.insert(name, (what, vec![value]));
    }

    pub fn put_part(&mut self, name: u32, part: Arc<Part>) {
        self.parts.insert(name, vec![part]);
    }

    pub fn put_parts(&mut self, name: u32, parts: Vec<Arc<Part>>) {
        self.parts.insert(name, parts);
    }

    pub fn put_values(&mut self, name: u32, what: u32, values: Vec<u64>) {
        self.values.insert(name, (what, values));
    }

    /// The values of an attribute with their type, if it was set.
    pub fn typed(&self, name: u32) -> Option<&Typed> {
        self.values.get(&name)
    }

    /// The values of an attribute; none if it was not set.
    pub fn values(&self, name: u32) -> &[u64] {
        self.values.get(&name).map_or(&[], |(_, values)| values)
    }

    /// *Errors*: it was not set.
    pub fn number(&self, name: u32) -> Result<u64, Status> {
        self.values(name).first().copied().ok_or(BAD_PARAM)
    }

    pub fn parts(&self, name: u32) -> &[Arc<Part>] {
        self.parts.get(&name).map_or(&[], Vec::as_slice)
    }

    /// *Errors*: it was not set, or to something else.
    pub fn part(&self, name: u32, kind: u32) -> Result<&Arc<Part>, Status> {
        self.parts(name).first().filter(|part| part.kind == kind).ok_or(BAD_PARAM)
    }
}
