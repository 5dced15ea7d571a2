//! What a stage may ask of the hardware: the set of operations that models are written in.
//!
//! Every operation is deterministic: its bits depend on its operands and their full shape alone, never on thread
//! count, cache size, world size or (on the CPU) instruction set. Sums run in a fixed order. An operation that
//! produces a parameter gradient or any other output *overwrites* it unless it says "adds to". No operation
//! allocates after its first call with a shape.
//!
//! This file does not know what a layer or a model is.

mod convolution;
mod losses;
mod recurrent;
mod shapes;
mod updates;

use dtrain_types::{Key, Wire};
use std::ops::Range;

pub use convolution::{Conv2dShape, Conv3dShape, ConvShape};
pub use losses::{CrossEntropy, LossSums, Outputs};
pub use recurrent::{Cell, CellGradients, CellStep, CellsKept, GATES};
pub use shapes::{
    Activation, Affine, Attended, AttentionShape, BatchNormOutputs, Centre, ChannelNorm, Curve, Gelu, Leaf,
    LinearShape, Mask, Matrices, Newest, NormGradients, NormInputs, Operands, Pool2d, Product, RopeScaling,
    RotaryShape, RotarySpeeds, RowNorm, Rows, Strides, Write,
};
pub use updates::{AdamW, Along, Lion, NORM_BLOCK, Sgd};

/// A slice for a shorter while: what goes into one value of operands has one lifetime.
pub fn reborrow<'b, 'a: 'b, D: Device>(x: D::Ref<'a>) -> D::Ref<'b> {
    D::part(x, 0..D::len(x))
}

/// The hardware of one rank.
///
/// *Blocks*: on a device with streams an operation may return before it is done; [`Device::wait`] and every read by
/// the host wait. *Panics*: every operation asserts that its slices have the lengths its shape says.
pub trait Device: Send + Sync + Sized + 'static {
    /// Read-only numbers in memory of the device: f32, or as it stores [activations](Device::activations).
    type Ref<'a>: Copy + Send + Sync;
    /// Writable ones.
    type Mut<'a>: Send;
    /// Read-only u32 memory of the device.
    type Ids<'a>: Copy + Send + Sync;
    /// What a loss comes to, before the host knows it.
    type Sums: Send;
    /// A number that operations are given: as it is, or as the device finds it when it comes to the operation.
    type Scalar: Copy + Send + From<f32>;

    /// Elements of a slice.
    fn len(x: Self::Ref<'_>) -> usize;
    /// Elements of a writable slice.
    fn len_mut(x: &Self::Mut<'_>) -> usize;
    /// A part of a slice, for as long as the slice lives or shorter (the compiler cannot shorten a generic borrow).
    fn part<'b, 'a: 'b>(x: Self::Ref<'a>, range: Range<usize>) -> Self::Ref<'b>;
    /// A part of a list of ids, for as long as the list lives or shorter.
    fn ids_part<'b, 'a: 'b>(x: Self::Ids<'a>, range: Range<usize>) -> Self::Ids<'b>;
    /// Elements of a list of ids.
    fn ids_len(x: Self::Ids<'_>) -> usize;
    /// A part of a writable slice, for a while.
    fn part_mut<'a>(x: &'a mut Self::Mut<'_>, range: Range<usize>) -> Self::Mut<'a>;
    /// A writable slice cut in two.
    fn split_mut<'a>(x: Self::Mut<'a>, at: usize) -> (Self::Mut<'a>, Self::Mut<'a>);
    /// A writable slice, read for a while.
    fn read<'a>(x: &'a Self::Mut<'_>) -> Self::Ref<'a>;

    /// Elements of f32 memory that so many activations take: values between stages and their gradients, which a device may
    /// store in fewer bits. Everything else is f32.
    fn activation_len(&self, values: usize) -> usize {
        values
    }
    /// Values from one row of a model's outputs to the next, of which each has `width`: more, where the device is faster with rows that
    /// begin on round places. It finds the number again in the length of what it is given.
    fn row_pitch(&self, width: usize) -> usize {
        width
    }
    /// The beginning of f32 memory as so many activations.
    fn activations<'b, 'a: 'b>(&self, memory: Self::Ref<'a>, values: usize) -> Self::Ref<'b> {
        Self::part(memory, 0..values)
    }
    /// The same to write.
    fn activations_mut<'a>(&self, memory: &'a mut Self::Mut<'_>, values: usize) -> Self::Mut<'a> {
        Self::part_mut(memory, 0..values)
    }

    /// Waits for all work given so far.
    fn wait(&self);
    /// Lets all work given so far begin. A device may keep it back until somebody waits, or reads, or it is much.
    fn submit(&self) {}
    /// `y = value`.
    fn fill(&self, y: Self::Mut<'_>, value: f32);
    /// `y = x`.
    fn copy(&self, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `y[r, i] = x[r, i]` of rows that begin so far apart there, and come to begin so far apart here: what is between them stays.
    fn copy_rows(&self, shape: Rows, [from, to]: [usize; 2], x: Self::Ref<'_>, mut y: Self::Mut<'_>) {
        for row in 0..shape.rows {
            let (from, to) = (row * from, row * to);
            self.copy(Self::part(x, from..from + shape.width), Self::part_mut(&mut y, to..to + shape.width));
        }
    }
    /// Of each matrix `y: [1 + rows, columns]`: the vector `token` and then `x: [rows, columns]`, to all of which
    /// `places: [1 + rows, columns]` is added.
    fn class_token(
        &self,
        shape: Matrices,
        x: Self::Ref<'_>,
        [token, places]: [Self::Ref<'_>; 2],
        mut y: Self::Mut<'_>,
    ) {
        let Matrices { matrices, rows, columns } = shape;
        let (from, to) = (rows * columns, (rows + 1) * columns);
        for matrix in 0..matrices {
            let first = Self::part_mut(&mut y, matrix * to..matrix * to + columns);
            self.add(reborrow::<Self>(token), Self::part(places, 0..columns), first);
            let others = Self::part_mut(&mut y, matrix * to + columns..(matrix + 1) * to);
            let x = Self::part(x, matrix * from..(matrix + 1) * from);
            self.add(x, Self::part(places, columns..to), others);
        }
    }

    /// `C = A B` or `C += A B`; see [`Product`]. *Order*: K in blocks of 512 from zero, each in order by fused
    /// multiply-add, blocks added in order; so a row's bits do not depend on the number of rows. A device that rounds operands has an
    /// order of its own, of which the last holds too.
    fn product(&self, shape: &Product, a: Self::Ref<'_>, b: Self::Ref<'_>, c: Self::Mut<'_>);
    /// `C = A B` as a tree of sums: `k` is cut into leaves of `leaf.terms` (the last may have fewer), each is summed as
    /// [`Device::product`] does it, and leaves are added in the order of the reduction tree; of more than one leaf each, and
    /// each sum, is rounded. The weight gradient of several micro-batches. A device that takes one at a time never gets
    /// more than one leaf.
    fn product_of_leaves(
        &self,
        shape: &Product,
        leaf: Leaf,
        a: Self::Ref<'_>,
        b: Self::Ref<'_>,
        c: Self::Mut<'_>,
    ) {
        assert!(leaf.terms >= shape.k, "this device takes one micro-batch at a time");
        self.product(shape, a, b, c);
    }
    /// `y[rows, out] = act(x[rows, in] w[out, in]^T + bias[out])`; the bias is added after the sum.
    fn linear(
        &self,
        shape: LinearShape,
        operands: Operands<Self::Ref<'_>>,
        activation: Activation,
        y: Self::Mut<'_>,
    );
    /// [`Device::linear`] to `z`, and `y = gelu(z)` of this form. *Order*: the bits of the two one behind the other.
    fn linear_gelu(
        &self,
        shape: LinearShape,
        operands: Operands<Self::Ref<'_>>,
        form: Gelu,
        mut z: Self::Mut<'_>,
        y: Self::Mut<'_>,
    ) {
        let len = Self::len_mut(&z);
        self.linear(shape, operands, Activation::None, Self::part_mut(&mut z, 0..len));
        self.gelu(form, Self::read(&z), y);
    }
    /// [`Device::linear`] without activation, and `plus` added to it. *Order*: the bits of the two one behind the other, where
    /// activations are f32; else of a sum that is rounded once.
    fn linear_plus(
        &self,
        shape: LinearShape,
        operands: Operands<Self::Ref<'_>>,
        plus: Self::Ref<'_>,
        mut y: Self::Mut<'_>,
    ) {
        let len = Self::len_mut(&y);
        self.linear(shape, operands, Activation::None, Self::part_mut(&mut y, 0..len));
        self.add_to(plus, y);
    }
    /// The gradient of an activation, in place, and the column sums of what it comes to: see [`Device::relu_gradient`],
    /// [`Device::gelu_gradient`] and [`Device::column_sums_of_leaves`], whose bits it has.
    fn curve_gradient_and_sums(
        &self,
        shape: Rows,
        leaf: Leaf,
        curve: Curve,
        saved: Self::Ref<'_>,
        mut d: Self::Mut<'_>,
        sums: Self::Mut<'_>,
    ) {
        let len = Self::len_mut(&d);
        self.curve_gradient(curve, saved, Self::part_mut(&mut d, 0..len));
        self.column_sums_of_leaves(shape, leaf, Self::read(&d), sums);
    }
    /// The gradient of an activation, in place.
    fn curve_gradient(&self, curve: Curve, saved: Self::Ref<'_>, d: Self::Mut<'_>) {
        match curve {
            Curve::Relu => self.relu_gradient(saved, d),
            Curve::Gelu(form) => self.gelu_gradient(form, saved, d),
        }
    }
    /// `sums[width] = sum over rows of x[rows, width]`, in row order within fixed blocks of rows.
    fn column_sums(&self, shape: Rows, x: Self::Ref<'_>, sums: Self::Mut<'_>);
    /// The same as a tree of sums over leaves of so many rows, see [`Device::product_of_leaves`].
    fn column_sums_of_leaves(&self, shape: Rows, leaf: Leaf, x: Self::Ref<'_>, sums: Self::Mut<'_>) {
        assert!(leaf.terms >= shape.rows, "this device takes one micro-batch at a time");
        self.column_sums(shape, x, sums);
    }

    /// Elements of scratch that the three operations of this convolution need, a function of the shape alone; `None` on a
    /// device that has no such convolution, for which no model with one can be planned.
    fn conv_scratch(&self, shape: &Conv3dShape) -> Option<usize>;
    /// Convolution with bias and activation. `scratch` has [`Device::conv_scratch`] elements.
    fn conv(
        &self,
        shape: &Conv3dShape,
        operands: Operands<Self::Ref<'_>>,
        activation: Activation,
        y: Self::Mut<'_>,
        scratch: Self::Mut<'_>,
    );
    /// `dx` of a convolution.
    fn conv_input_gradient(
        &self,
        shape: &Conv3dShape,
        w: Self::Ref<'_>,
        dy: Self::Ref<'_>,
        dx: Self::Mut<'_>,
        scratch: Self::Mut<'_>,
    );
    /// The same where `x`, which was convolved, is what a ReLU gave: what that does to the gradient is done too. Its bits are those of
    /// [`Device::conv_input_gradient`] and [`Device::relu_gradient`] behind it.
    fn conv_input_gradient_of_relu(
        &self,
        shape: &Conv3dShape,
        w: Self::Ref<'_>,
        dy: Self::Ref<'_>,
        x: Self::Ref<'_>,
        mut dx: Self::Mut<'_>,
        scratch: Self::Mut<'_>,
    ) {
        let len = Self::len_mut(&dx);
        self.conv_input_gradient(shape, w, dy, Self::part_mut(&mut dx, 0..len), scratch);
        self.relu_gradient(x, dx);
    }
    /// `dw` and, if asked, `db` of a convolution.
    fn conv_weight_gradient(
        &self,
        shape: &Conv3dShape,
        x: Self::Ref<'_>,
        dy: Self::Ref<'_>,
        dw: Self::Mut<'_>,
        db: Option<Self::Mut<'_>>,
        scratch: Self::Mut<'_>,
    );

    /// Max-pooling; `places` keeps the index in its plane of each maximum (the first of equals), as the bits of a u32.
    fn max_pool(&self, shape: &Pool2d, x: Self::Ref<'_>, y: Self::Mut<'_>, places: Self::Mut<'_>);
    /// `dx` of max-pooling.
    fn max_pool_gradient(&self, shape: &Pool2d, places: Self::Ref<'_>, dy: Self::Ref<'_>, dx: Self::Mut<'_>);
    /// Average pooling.
    fn avg_pool(&self, shape: &Pool2d, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `dx` of average pooling.
    fn avg_pool_gradient(&self, shape: &Pool2d, dy: Self::Ref<'_>, dx: Self::Mut<'_>);

    /// `y = max(x, 0)`.
    fn relu(&self, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `d = y > 0 ? d : 0`, in place.
    fn relu_gradient(&self, y: Self::Ref<'_>, d: Self::Mut<'_>);
    /// `y = gelu(x)` of this form.
    fn gelu(&self, form: Gelu, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `d = d * gelu'(x)`, in place.
    fn gelu_gradient(&self, form: Gelu, x: Self::Ref<'_>, d: Self::Mut<'_>);
    /// `y = x * keep / (1 - rate)`, element `i` dropped when number `i` of `key` is below `rate`. Its gradient is itself.
    fn dropout(&self, key: Key, rate: f32, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `y = a + b`.
    fn add(&self, a: Self::Ref<'_>, b: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `y += x`: the addition of the reduction tree, and of residual gradients.
    fn add_to(&self, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// Rounds every element. A device that takes one micro-batch at a time leaves it to the host.
    fn round(&self, wire: Wire, y: Self::Mut<'_>) {
        let len = Self::len_mut(&y);
        assert!(wire == Wire::F32, "this device does not round {len} elements");
    }

    /// Layer norm or RMS norm over the width; `saved: [rows, 2]` keeps what was taken off and the reciprocal deviation.
    fn layer_norm(
        &self,
        norm: RowNorm,
        x: Self::Ref<'_>,
        gain: Self::Ref<'_>,
        bias: Option<Self::Ref<'_>>,
        y: Self::Mut<'_>,
        saved: Self::Mut<'_>,
    );
    /// Its gradients. `scratch` has [`Device::layer_norm_scratch`] elements.
    fn layer_norm_gradient(
        &self,
        norm: RowNorm,
        inputs: NormInputs<Self::Ref<'_>>,
        gradients: NormGradients<Self::Mut<'_>>,
        scratch: Self::Mut<'_>,
    );
    /// The same, with `outer` added to `dx`, which is there. *Order*: the bits of the two one behind the other, where activations
    /// are f32; else of a sum that is rounded once.
    fn layer_norm_gradient_plus(
        &self,
        norm: RowNorm,
        inputs: NormInputs<Self::Ref<'_>>,
        outer: Self::Ref<'_>,
        gradients: NormGradients<Self::Mut<'_>>,
        scratch: Self::Mut<'_>,
    ) {
        let NormGradients { dx, mut dgain, mut dbias } = gradients;
        let mut dx = dx.expect("a gradient that something is added to");
        let (len, width) = (Self::len_mut(&dx), norm.rows.width);
        let own = NormGradients {
            dx: Some(Self::part_mut(&mut dx, 0..len)),
            dgain: Self::part_mut(&mut dgain, 0..width),
            dbias: dbias.as_mut().map(|dbias| Self::part_mut(dbias, 0..width)),
        };
        self.layer_norm_gradient(norm, inputs, own, scratch);
        self.add_to(outer, dx);
    }
    /// Elements of scratch that the gradient of layer norm needs. A function of the shape alone.
    fn layer_norm_scratch(&self, shape: Rows) -> usize;

    /// Batch norm by the statistics of this micro-batch.
    fn batch_norm(
        &self,
        shape: ChannelNorm,
        x: Self::Ref<'_>,
        affine: Affine<Self::Ref<'_>>,
        outputs: BatchNormOutputs<Self::Mut<'_>>,
    );
    /// Batch norm by running statistics `[2, channels]` (mean, then variance).
    fn batch_norm_by(
        &self,
        shape: ChannelNorm,
        x: Self::Ref<'_>,
        gain: Self::Ref<'_>,
        bias: Self::Ref<'_>,
        running: Self::Ref<'_>,
        y: Self::Mut<'_>,
    );
    /// Gradients of batch norm by the micro-batch's statistics.
    fn batch_norm_gradient(
        &self,
        shape: ChannelNorm,
        inputs: NormInputs<Self::Ref<'_>>,
        gradients: NormGradients<Self::Mut<'_>>,
    );

    /// `y[i] = table[ids[i]] + places[i % time]`; `places` may be absent.
    fn embedding(
        &self,
        shape: Rows,
        ids: Self::Ids<'_>,
        table: Self::Ref<'_>,
        places: Option<(Self::Ref<'_>, usize)>,
        y: Self::Mut<'_>,
    );
    /// Gradients of an embedding, rows added in order: that of the table overwritten (zero where nothing came) or added to
    /// what is there, that of places overwritten.
    fn embedding_gradient(
        &self,
        shape: Rows,
        ids: Self::Ids<'_>,
        dy: Self::Ref<'_>,
        write: Write,
        dtable: Self::Mut<'_>,
        dplaces: Option<(Self::Mut<'_>, usize)>,
    );

    /// `y[i, c, r] = x[i, r, c]`.
    fn transpose(&self, shape: Matrices, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `y = 1 / (1 + e^-x)`.
    fn sigmoid(&self, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `d = d y (1 - y)`, in place.
    fn sigmoid_gradient(&self, y: Self::Ref<'_>, d: Self::Mut<'_>);
    /// `y[r, i] = a sigmoid(a) b`, of `a = x[r, i]` and `b = x[r, width + i]`: the gated half of rows twice as wide.
    fn swiglu(&self, shape: Rows, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `dx: [rows, 2 width]` of it.
    fn swiglu_gradient(&self, shape: Rows, x: Self::Ref<'_>, dy: Self::Ref<'_>, dx: Self::Mut<'_>);
    /// Rotary positions, and keys and values for each head; see [`RotaryShape`].
    fn rotary(&self, shape: &RotaryShape, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `dx` of it: turned back, and the heads of a group added in order.
    fn rotary_gradient(&self, shape: &RotaryShape, dy: Self::Ref<'_>, dx: Self::Mut<'_>);
    /// `y[r, i] = x[r, i] by[r]`.
    fn scale_rows(&self, shape: Rows, x: Self::Ref<'_>, by: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `y[r] = sum over i of a[r, i] b[r, i]`.
    fn dot_rows(&self, shape: Rows, a: Self::Ref<'_>, b: Self::Ref<'_>, y: Self::Mut<'_>);
    /// One step of recurrent cells: `gates` holds, at this place, the sums of the products of inputs and outputs before with weights,
    /// and becomes what [`Device::recurrent_gradient`] needs; `states` and `y` are written at this place. `biases` are those of
    /// inputs and of outputs before, `[gates, hidden]` of PyTorch's layer. Gates and states are f32.
    fn recurrent_cells(
        &self,
        step: &CellStep,
        biases: [Self::Ref<'_>; 2],
        gates: Self::Mut<'_>,
        states: Self::Mut<'_>,
        y: Self::Mut<'_>,
    );
    /// The gradients of one step of recurrent cells, last place first.
    fn recurrent_gradient(
        &self,
        step: &CellStep,
        kept: CellsKept<Self::Ref<'_>>,
        gradients: CellGradients<Self::Mut<'_>>,
    );

    /// Self-attention; `saved` has [`Device::attention_saved`] elements, `scratch`
    /// [`Device::attention_scratch`].
    fn attention(
        &self,
        shape: &AttentionShape,
        qkv: Self::Ref<'_>,
        y: Self::Mut<'_>,
        saved: Self::Mut<'_>,
        scratch: Self::Mut<'_>,
    );
    /// `dqkv` of self-attention.
    fn attention_gradient(
        &self,
        shape: &AttentionShape,
        inputs: Attended<Self::Ref<'_>>,
        dqkv: Self::Mut<'_>,
        scratch: Self::Mut<'_>,
    );
    /// Elements that attention keeps for its gradient.
    fn attention_saved(&self, shape: &AttentionShape) -> usize;
    /// Elements of scratch that attention and its gradient need.
    fn attention_scratch(&self, shape: &AttentionShape) -> usize;

    /// Whether [`Device::attention_of_newest`] is there.
    fn decodes(&self) -> bool {
        false
    }
    /// Elements that it keeps of so many texts, of so many places each. *Panics* where [`Device::decodes`] says no.
    fn kv_cache_len(&self, _shape: &AttentionShape) -> usize {
        panic!("this device keeps no keys and values");
    }
    /// Causal attention of the newest tokens of texts, and of them alone: `qkv` has theirs, `cache` the keys and values of all tokens that were seen, to which theirs
    /// are added. The shape has the texts of this pass, and the places of the cache.
    ///
    /// *Order*: the bits are those of [`Device::attention`] over the whole texts. *Panics* where [`Device::decodes`] says no.
    fn attention_of_newest(
        &self,
        _shape: &AttentionShape,
        _newest: Newest,
        _qkv: Self::Ref<'_>,
        _cache: Self::Mut<'_>,
        _y: Self::Mut<'_>,
    ) {
        panic!("this device keeps no keys and values");
    }

    /// Cross entropy of `logits: [rows, width]`.
    fn cross_entropy(
        &self,
        shape: Rows,
        options: &CrossEntropy<'_, Self::Scalar>,
        logits: Outputs<Self::Ref<'_>, Self::Mut<'_>>,
        targets: Self::Ids<'_>,
    ) -> Self::Sums;
    /// The same of targets that are mixtures of two: `[rows, 3]` words, as [`Targets::Mixed`](crate::Targets::Mixed) has them. A row costs
    /// the sum of what its two targets cost, each by its share, and counts as correct for the greater share.
    fn mixed_cross_entropy(
        &self,
        shape: Rows,
        options: &CrossEntropy<'_, Self::Scalar>,
        logits: Outputs<Self::Ref<'_>, Self::Mut<'_>>,
        targets: Self::Ids<'_>,
    ) -> Self::Sums;
    /// The index of the greatest of each row's logits (the first of equals), for confusion counts.
    fn arg_max(&self, shape: Rows, logits: Self::Ref<'_>, best: &mut [u32]);
    /// Squared error summed over a row and divided by the width, summed over rows (each of weight 1). The gradient is multiplied by
    /// `scale`, a power of two.
    fn squared_error(
        &self,
        shape: Rows,
        scale: Self::Scalar,
        outputs: Outputs<Self::Ref<'_>, Self::Mut<'_>>,
        targets: Self::Ref<'_>,
    ) -> Self::Sums;

    /// What a loss came to. It is asked for once, before the next loss. *Blocks* until it is known.
    fn sums(&self, of: Self::Sums) -> LossSums;

    /// Sum of squares in f64 over fixed blocks of [`NORM_BLOCK`] elements, in block order, of `g * scale` rounded to f32. Not
    /// finite if any element is not.
    fn sum_of_squares(&self, g: Self::Ref<'_>, scale: f32) -> f64;
    /// AdamW in place over flat slices.
    fn adamw(
        &self,
        o: &AdamW<Self::Scalar>,
        g: Self::Ref<'_>,
        p: Self::Mut<'_>,
        m: Self::Mut<'_>,
        v: Self::Mut<'_>,
    );
    /// [`Device::adamw`] of parameters and moments that are read in one place and written to another.
    fn adamw_to(
        &self,
        o: &AdamW<Self::Scalar>,
        g: Self::Ref<'_>,
        from: [Self::Ref<'_>; 3],
        mut to: [Self::Mut<'_>; 3],
    ) {
        for (from, to) in from.into_iter().zip(&mut to) {
            let len = Self::len_mut(to);
            self.copy(from, Self::part_mut(to, 0..len));
        }
        let [p, m, v] = to;
        self.adamw(o, g, p, m, v);
    }
    /// SGD in place over flat slices; `m` is empty without momentum.
    fn sgd(&self, o: &Sgd<Self::Scalar>, g: Self::Ref<'_>, p: Self::Mut<'_>, m: Self::Mut<'_>);
    /// Lion in place over flat slices.
    fn lion(&self, o: &Lion<Self::Scalar>, g: Self::Ref<'_>, p: Self::Mut<'_>, m: Self::Mut<'_>);
    /// `p = decay p - step way`, of a way that lies as activations do.
    fn along(&self, o: &Along<Self::Scalar>, way: Self::Ref<'_>, p: Self::Mut<'_>);
    /// `y = x / max(|x|, least)`, of f32 to numbers that lie as activations do. *Order*: that of [`Device::sum_of_squares`].
    fn unit(&self, least: f64, x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `y = a x + b y`, without a fused operation; where `b` is 0, `y` is not read.
    fn combine(&self, by: [f32; 2], x: Self::Ref<'_>, y: Self::Mut<'_>);
    /// `running = (1 - momentum) * running + momentum * (sums * scale)`.
    fn blend(&self, momentum: f32, scale: Self::Scalar, sums: Self::Ref<'_>, running: Self::Mut<'_>);
    /// Whether every element is finite.
    fn all_finite(&self, x: Self::Ref<'_>) -> bool;
}
