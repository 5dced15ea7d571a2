//! Every kernel: its file, its threads and its parameters.
//!
//! A kernel's parameters are a word with a letter for each, in order:
//!
//! | | a pointer to memory that is read / written | | a value |
//! |---|---|---|---|
//! | `f` `F` | `float` | `u` | `u32` |
//! | `i` `I` | `u32` | `l` | `u64` |
//! | `h` `H` | `u16`, the bits of a half | `r` | `float` |
//! | `d` `D` | `double` | `C` `V` `P` | the shape of a convolution over images, over volumes, of a pooling |
//!
//! The tests compare this table with the sources. A file of kernels over halves is there twice, behind `bf16.cuh` and behind
//! `f16.cuh`, and one of kernels over numbers between layers, which lie in memory as floats or as halves, a third time, behind
//! `f32.cuh`: they say what is different, and put the kind into the names of the kernels.
//!
//! This file does not know what a kernel is for, or which grid it wants.

/// A text that stands before kernels.
#[derive(Debug)]
pub struct SourcePart {
    /// Its name in `kernels/parts`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// A file of kernels: one idea.
#[derive(Debug)]
pub struct File {
    /// Its name in `kernels`. Where it is there for two kinds of halves, they share it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// What has to stand before it, in order.
    pub parts: &'static [SourcePart],
}

/// A number that is another one when a kernel is: the beginning of a digest of all sources.
#[must_use]
pub fn revision() -> u32 {
    let mut hasher = blake3::Hasher::new();
    FILES.iter().for_each(|file| {
        hasher.update(file.source().as_bytes());
    });
    let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name, the same in the source and in what is compiled from it.
    pub name: &'static str,
    /// Where it is written.
    pub file: &'static File,
    /// Threads of a block: a constant of the source.
    pub threads: u32,
    /// Its parameters.
    pub parameters: &'static str,
}

impl File {
    /// The whole text that is compiled. Messages name the places in the files.
    #[must_use]
    pub fn source(&self) -> String {
        let mut source = String::new();
        for (name, text) in
            self.parts.iter().map(|part| (part.name, part.text)).chain([(self.name, self.text)])
        {
            source.push_str(&format!("#line 1 \"{name}\"\n{text}"));
        }
        source
    }

    /// Its kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> {
        KERNELS.iter().copied().filter(move |kernel| std::ptr::eq(kernel.file, self))
    }
}

macro_rules! part {
    ($name:literal) => {
        SourcePart { name: $name, text: include_str!(concat!("../kernels/parts/", $name)) }
    };
}

macro_rules! kernels {
    ($($file:ident $file_name:literal [$($part:literal),*] { $($kernel:ident $name:literal $threads:literal $parameters:literal)* })*) => {
        $(
            static $file: File = File {
                name: $file_name,
                text: include_str!(concat!("../kernels/", $file_name)),
                parts: &[part!("prelude.cuh"), $(part!($part)),*],
            };
            $(
                #[doc = concat!("`", $name, "` of `kernels/", $file_name, "`.")]
                pub static $kernel: Kernel =
                    Kernel { name: $name, file: &$file, threads: $threads, parameters: $parameters };
            )*
        )*
        /// Every file of kernels.
        pub static FILES: &[&File] = &[$(&$file),*];
        /// Every kernel, file by file.
        pub static KERNELS: &[&Kernel] = &[$($(&$kernel),*),*];
    };
}

kernels! {
    FILL_CU "fill.cu" ["f32.cuh"] {
        FILL "fill_f32" 256 "Frl"
    }
    FILL_BF16_CU "fill.cu" ["bf16.cuh"] {
        FILL_BF16 "fill_bf16" 256 "Hrl"
    }
    FILL_F16_CU "fill.cu" ["f16.cuh"] {
        FILL_F16 "fill_f16" 256 "Hrl"
    }
    COPY_CU "copy.cu" ["f32.cuh", "wide.cuh", "each.cuh"] {
        COPY "copy_f32" 256 "fFl"
    }
    COPY_BF16_CU "copy.cu" ["bf16.cuh", "wide.cuh", "each.cuh"] {
        COPY_BF16 "copy_bf16" 256 "hHl"
    }
    COPY_F16_CU "copy.cu" ["f16.cuh", "wide.cuh", "each.cuh"] {
        COPY_F16 "copy_f16" 256 "hHl"
    }
    ADD_CU "add.cu" ["f32.cuh", "wide.cuh", "each.cuh"] {
        ADD "add_f32" 256 "ffFl"
        ADD_TO "add_to_f32" 256 "fFl"
    }
    ADD_BF16_CU "add.cu" ["bf16.cuh", "wide.cuh", "each.cuh"] {
        ADD_BF16 "add_bf16" 256 "hhHl"
        ADD_TO_BF16 "add_to_bf16" 256 "hHl"
    }
    ADD_F16_CU "add.cu" ["f16.cuh", "wide.cuh", "each.cuh"] {
        ADD_F16 "add_f16" 256 "hhHl"
        ADD_TO_F16 "add_to_f16" 256 "hHl"
    }
    RELU_CU "relu.cu" ["f32.cuh", "wide.cuh", "each.cuh"] {
        RELU "relu_f32" 256 "fFl"
        RELU_GRADIENT "relu_gradient_f32" 256 "fFl"
    }
    RELU_BF16_CU "relu.cu" ["bf16.cuh", "wide.cuh", "each.cuh"] {
        RELU_BF16 "relu_bf16" 256 "hHl"
        RELU_GRADIENT_BF16 "relu_gradient_bf16" 256 "hHl"
    }
    RELU_F16_CU "relu.cu" ["f16.cuh", "wide.cuh", "each.cuh"] {
        RELU_F16 "relu_f16" 256 "hHl"
        RELU_GRADIENT_F16 "relu_gradient_f16" 256 "hHl"
    }
    GELU_CU "gelu.cu" ["exact.cuh", "math.cuh", "f32.cuh", "wide.cuh", "each.cuh"] {
        GELU "gelu_f32" 256 "fFl"
        GELU_GRADIENT "gelu_gradient_f32" 256 "fFl"
        GELU_TANH "gelu_tanh_f32" 256 "fFl"
        GELU_TANH_GRADIENT "gelu_tanh_gradient_f32" 256 "fFl"
    }
    GELU_BF16_CU "gelu.cu" ["quick.cuh", "math.cuh", "bf16.cuh", "wide.cuh", "each.cuh"] {
        GELU_BF16 "gelu_bf16" 256 "hHl"
        GELU_GRADIENT_BF16 "gelu_gradient_bf16" 256 "hHl"
        GELU_TANH_BF16 "gelu_tanh_bf16" 256 "hHl"
        GELU_TANH_GRADIENT_BF16 "gelu_tanh_gradient_bf16" 256 "hHl"
    }
    GELU_F16_CU "gelu.cu" ["quick.cuh", "math.cuh", "f16.cuh", "wide.cuh", "each.cuh"] {
        GELU_F16 "gelu_f16" 256 "hHl"
        GELU_GRADIENT_F16 "gelu_gradient_f16" 256 "hHl"
        GELU_TANH_F16 "gelu_tanh_f16" 256 "hHl"
        GELU_TANH_GRADIENT_F16 "gelu_tanh_gradient_f16" 256 "hHl"
    }
    SIGMOID_CU "sigmoid.cu" ["exact.cuh", "math.cuh", "f32.cuh", "wide.cuh", "each.cuh"] {
        SIGMOID "sigmoid_f32" 256 "fFl"
        SIGMOID_GRADIENT "sigmoid_gradient_f32" 256 "fFl"
    }
    SIGMOID_BF16_CU "sigmoid.cu" ["quick.cuh", "math.cuh", "bf16.cuh", "wide.cuh", "each.cuh"] {
        SIGMOID_BF16 "sigmoid_bf16" 256 "hHl"
        SIGMOID_GRADIENT_BF16 "sigmoid_gradient_bf16" 256 "hHl"
    }
    SIGMOID_F16_CU "sigmoid.cu" ["quick.cuh", "math.cuh", "f16.cuh", "wide.cuh", "each.cuh"] {
        SIGMOID_F16 "sigmoid_f16" 256 "hHl"
        SIGMOID_GRADIENT_F16 "sigmoid_gradient_f16" 256 "hHl"
    }
    SWIGLU_CU "swiglu.cu" ["exact.cuh", "math.cuh", "f32.cuh", "wide.cuh", "channels.cuh"] {
        SWIGLU "swiglu_f32" 256 "fFluu"
        SWIGLU_GRADIENT "swiglu_gradient_f32" 256 "ffFluu"
    }
    SWIGLU_BF16_CU "swiglu.cu" ["quick.cuh", "math.cuh", "bf16.cuh", "wide.cuh", "channels.cuh"] {
        SWIGLU_BF16 "swiglu_bf16" 256 "hHluu"
        SWIGLU_GRADIENT_BF16 "swiglu_gradient_bf16" 256 "hhHluu"
    }
    SWIGLU_F16_CU "swiglu.cu" ["quick.cuh", "math.cuh", "f16.cuh", "wide.cuh", "channels.cuh"] {
        SWIGLU_F16 "swiglu_f16" 256 "hHluu"
        SWIGLU_GRADIENT_F16 "swiglu_gradient_f16" 256 "hhHluu"
    }
    BIAS_ACTIVATION_CU "bias_activation.cu" ["f32.cuh", "wide.cuh", "channels.cuh"] {
        BIAS_ACTIVATION "bias_activation_f32" 256 "fFluuu"
    }
    BIAS_ACTIVATION_BF16_CU "bias_activation.cu" ["bf16.cuh", "wide.cuh", "channels.cuh"] {
        BIAS_ACTIVATION_BF16 "bias_activation_bf16" 256 "fHluuu"
    }
    BIAS_ACTIVATION_F16_CU "bias_activation.cu" ["f16.cuh", "wide.cuh", "channels.cuh"] {
        BIAS_ACTIVATION_F16 "bias_activation_f16" 256 "fHluuu"
    }
    FINISH_CU "finish.cu" ["f32.cuh"] {
        FINISH "finish_f32" 256 "fffFluuuu"
    }
    FINISH_BF16_CU "finish.cu" ["bf16.cuh"] {
        FINISH_BF16 "finish_bf16" 256 "ffhHluuuu"
    }
    FINISH_F16_CU "finish.cu" ["f16.cuh"] {
        FINISH_F16 "finish_f16" 256 "ffhHluuuu"
    }
    TURN_CU "turn.cu" ["f32.cuh"] {
        TURN "turn_f32" 256 "fffFuuuuu"
    }
    TURN_BF16_CU "turn.cu" ["bf16.cuh"] {
        TURN_BF16 "turn_bf16" 256 "hfhHuuuuu"
    }
    TURN_F16_CU "turn.cu" ["f16.cuh"] {
        TURN_F16 "turn_f16" 256 "hfhHuuuuu"
    }
    ROWS_CU "rows.cu" ["f32.cuh", "wide.cuh"] {
        COPY_ROWS "copy_rows_f32" 256 "fFuuu"
        CLASS_TOKEN "class_token_f32" 256 "fffFuu"
    }
    ROWS_BF16_CU "rows.cu" ["bf16.cuh", "wide.cuh"] {
        COPY_ROWS_BF16 "copy_rows_bf16" 256 "hHuuu"
        CLASS_TOKEN_BF16 "class_token_bf16" 256 "hffHuu"
    }
    ROWS_F16_CU "rows.cu" ["f16.cuh", "wide.cuh"] {
        COPY_ROWS_F16 "copy_rows_f16" 256 "hHuuu"
        CLASS_TOKEN_F16 "class_token_f16" 256 "hffHuu"
    }
    ROW_PRODUCTS_CU "row_products.cu" ["sums.cuh", "f32.cuh", "wide.cuh", "each.cuh", "channels.cuh"] {
        SCALE_ROWS "scale_rows_f32" 256 "ffFluu"
        DOT_ROWS "dot_rows_f32" 256 "ffFuu"
    }
    ROW_PRODUCTS_BF16_CU "row_products.cu" ["sums.cuh", "bf16.cuh", "wide.cuh", "each.cuh", "channels.cuh"] {
        SCALE_ROWS_BF16 "scale_rows_bf16" 256 "hhHluu"
        DOT_ROWS_BF16 "dot_rows_bf16" 256 "hhHuu"
    }
    ROW_PRODUCTS_F16_CU "row_products.cu" ["sums.cuh", "f16.cuh", "wide.cuh", "each.cuh", "channels.cuh"] {
        SCALE_ROWS_F16 "scale_rows_f16" 256 "hhHluu"
        DOT_ROWS_F16 "dot_rows_f16" 256 "hhHuu"
    }
    ROTARY_CU "rotary.cu" ["f32.cuh"] {
        ROTARY "rotary_f32" 256 "fFluuuuullll"
        ROTARY_GRADIENT "rotary_gradient_f32" 256 "fFluuuuullll"
    }
    ROTARY_BF16_CU "rotary.cu" ["bf16.cuh"] {
        ROTARY_BF16 "rotary_bf16" 256 "hHluuuuullll"
        ROTARY_GRADIENT_BF16 "rotary_gradient_bf16" 256 "hHluuuuullll"
    }
    ROTARY_F16_CU "rotary.cu" ["f16.cuh"] {
        ROTARY_F16 "rotary_f16" 256 "hHluuuuullll"
        ROTARY_GRADIENT_F16 "rotary_gradient_f16" 256 "hHluuuuullll"
    }
    DROPOUT_CU "dropout.cu" ["f32.cuh", "wide.cuh"] {
        DROPOUT "dropout_f32" 256 "fFluuuuuur"
    }
    DROPOUT_BF16_CU "dropout.cu" ["bf16.cuh", "wide.cuh"] {
        DROPOUT_BF16 "dropout_bf16" 256 "hHluuuuuur"
    }
    DROPOUT_F16_CU "dropout.cu" ["f16.cuh", "wide.cuh"] {
        DROPOUT_F16 "dropout_f16" 256 "hHluuuuuur"
    }
    HALF_BF16_CU "half.cu" ["bf16.cuh", "wide.cuh"] {
        TO_BF16 "to_bf16" 256 "fHl"
        FROM_BF16 "from_bf16" 256 "hFl"
    }
    HALF_F16_CU "half.cu" ["f16.cuh", "wide.cuh"] {
        TO_F16 "to_f16" 256 "fHl"
        FROM_F16 "from_f16" 256 "hFl"
    }
    UPDATE_CU "update.cu" ["f32.cuh"] {
        ADAMW "adamw_f32" 256 "fFFFFlrrrrrrrf"
        LION "lion_f32" 256 "fFFFlrrrrrf"
        SGD "sgd_f32" 256 "fFFlrrrf"
        SGD_MOMENTUM "sgd_momentum_f32" 256 "fFFFlrrrruuf"
        ALONG "along_f32" 256 "fFFlrrrf"
    }
    UPDATE_BF16_CU "update.cu" ["bf16.cuh"] {
        ADAMW_BF16 "adamw_bf16" 256 "fFFFHlrrrrrrrf"
        LION_BF16 "lion_bf16" 256 "fFFHlrrrrrf"
        SGD_BF16 "sgd_bf16" 256 "fFHlrrrf"
        SGD_MOMENTUM_BF16 "sgd_momentum_bf16" 256 "fFFHlrrrruuf"
        ALONG_BF16 "along_bf16" 256 "hFHlrrrf"
    }
    UPDATE_F16_CU "update.cu" ["f16.cuh"] {
        ADAMW_F16 "adamw_f16" 256 "fFFFHlrrrrrrrf"
        LION_F16 "lion_f16" 256 "fFFHlrrrrrf"
        SGD_F16 "sgd_f16" 256 "fFHlrrrf"
        SGD_MOMENTUM_F16 "sgd_momentum_f16" 256 "fFFHlrrrruuf"
        ALONG_F16 "along_f16" 256 "hFHlrrrf"
    }
    ORTHOGONAL_CU "orthogonal.cu" ["f32.cuh", "wide.cuh", "each.cuh"] {
        UNIT "unit_f32" 256 "fdFlr"
        COMBINE "combine_f32" 256 "fFlrr"
    }
    ORTHOGONAL_BF16_CU "orthogonal.cu" ["bf16.cuh", "wide.cuh", "each.cuh"] {
        UNIT_BF16 "unit_bf16" 256 "fdHlr"
        COMBINE_BF16 "combine_bf16" 256 "hHlrr"
    }
    ORTHOGONAL_F16_CU "orthogonal.cu" ["f16.cuh", "wide.cuh", "each.cuh"] {
        UNIT_F16 "unit_f16" 256 "fdHlr"
        COMBINE_F16 "combine_f16" 256 "hHlrr"
    }
    BLEND_CU "blend.cu" ["f32.cuh"] {
        BLEND "blend_f32" 256 "fFFlrrf"
    }
    BLEND_BF16_CU "blend.cu" ["bf16.cuh"] {
        BLEND_BF16 "blend_bf16" 256 "fFHlrrf"
    }
    BLEND_F16_CU "blend.cu" ["f16.cuh"] {
        BLEND_F16 "blend_f16" 256 "fFHlrrf"
    }
    FINITE_CU "finite.cu" [] {
        FINITE_PARTS "finite_parts" 256 "fIl"
        FINITE_ALL "finite_all" 256 "iIu"
    }
    SQUARES_CU "squares.cu" [] {
        SQUARE_PARTS "square_parts" 256 "fDlrf"
        SUM_IN_ORDER "sum_in_order" 256 "dDu"
    }
    SETTLE_CU "settle.cu" [] {
        WEIGH "weigh" 32 "dDFuuul"
        SETTLE "settle" 32 "DFFulrr"
    }
    SUM_TREE_CU "sum_tree.cu" [] {
        SUM_TREE "sum_tree" 256 "iiiuul"
    }
    COLUMN_SUMS_CU "column_sums.cu" ["sums.cuh", "f32.cuh", "wide.cuh", "strip.cuh", "run.cuh"] {
        COLUMN_PARTS "column_parts_f32" 256 "fFuuu"
        PLANE_PARTS "plane_parts_f32" 256 "fFuuu"
    }
    COLUMN_SUMS_BF16_CU "column_sums.cu" ["sums.cuh", "bf16.cuh", "wide.cuh", "strip.cuh", "run.cuh"] {
        COLUMN_PARTS_BF16 "column_parts_bf16" 256 "hFuuu"
        PLANE_PARTS_BF16 "plane_parts_bf16" 256 "hFuuu"
    }
    COLUMN_SUMS_F16_CU "column_sums.cu" ["sums.cuh", "f16.cuh", "wide.cuh", "strip.cuh", "run.cuh"] {
        COLUMN_PARTS_F16 "column_parts_f16" 256 "hFuuu"
        PLANE_PARTS_F16 "plane_parts_f16" 256 "hFuuu"
    }
    GRADIENT_PARTS_CU "gradient_parts.cu" ["exact.cuh", "math.cuh", "f32.cuh", "wide.cuh", "strip.cuh"] {
        GRADIENT_PARTS "gradient_parts_f32" 256 "fFFuuu"
    }
    GRADIENT_PARTS_BF16_CU "gradient_parts.cu" ["quick.cuh", "math.cuh", "bf16.cuh", "wide.cuh", "strip.cuh"] {
        GRADIENT_PARTS_BF16 "gradient_parts_bf16" 256 "hHFuuu"
    }
    GRADIENT_PARTS_F16_CU "gradient_parts.cu" ["quick.cuh", "math.cuh", "f16.cuh", "wide.cuh", "strip.cuh"] {
        GRADIENT_PARTS_F16 "gradient_parts_f16" 256 "hHFuuu"
    }
    SUM_PARTS_CU "sum_parts.cu" [] {
        SUM_PARTS "sum_parts" 256 "fFlul"
    }
    LAYER_NORM_CU "layer_norm.cu" ["sums.cuh", "f32.cuh", "wide.cuh", "strip.cuh"] {
        LAYER_NORM "layer_norm_f32" 256 "fffFFuuur"
        LAYER_NORM_GRADIENT "layer_norm_gradient_f32" 512 "fffffFFuuu"
    }
    LAYER_NORM_BF16_CU "layer_norm.cu" ["sums.cuh", "bf16.cuh", "wide.cuh", "strip.cuh"] {
        LAYER_NORM_BF16 "layer_norm_bf16" 256 "hffHFuuur"
        LAYER_NORM_GRADIENT_BF16 "layer_norm_gradient_bf16" 512 "hffhhHFuuu"
    }
    LAYER_NORM_F16_CU "layer_norm.cu" ["sums.cuh", "f16.cuh", "wide.cuh", "strip.cuh"] {
        LAYER_NORM_F16 "layer_norm_f16" 256 "hffHFuuur"
        LAYER_NORM_GRADIENT_F16 "layer_norm_gradient_f16" 512 "hffhhHFuuu"
    }
    BATCH_NORM_CU "batch_norm.cu" ["sums.cuh", "run.cuh", "f32.cuh", "wide.cuh", "channels.cuh"] {
        BATCH_NORM_PARTS "batch_norm_parts_f32" 256 "fDuuu"
        BATCH_NORM "batch_norm_f32" 256 "ffffFluu"
        BATCH_NORM_BY "batch_norm_by_f32" 256 "ffffFluur"
        BATCH_NORM_GRADIENT_PARTS "batch_norm_gradient_parts_f32" 256 "fffDuuu"
        BATCH_NORM_GRADIENT "batch_norm_gradient_f32" 256 "ffffffFluuu"
    }
    BATCH_NORM_BF16_CU "batch_norm.cu" ["sums.cuh", "run.cuh", "bf16.cuh", "wide.cuh", "channels.cuh"] {
        BATCH_NORM_PARTS_BF16 "batch_norm_parts_bf16" 256 "hDuuu"
        BATCH_NORM_BF16 "batch_norm_bf16" 256 "hfffHluu"
        BATCH_NORM_BY_BF16 "batch_norm_by_bf16" 256 "hfffHluur"
        BATCH_NORM_GRADIENT_PARTS_BF16 "batch_norm_gradient_parts_bf16" 256 "hfhDuuu"
        BATCH_NORM_GRADIENT_BF16 "batch_norm_gradient_bf16" 256 "hffffhHluuu"
    }
    BATCH_NORM_F16_CU "batch_norm.cu" ["sums.cuh", "run.cuh", "f16.cuh", "wide.cuh", "channels.cuh"] {
        BATCH_NORM_PARTS_F16 "batch_norm_parts_f16" 256 "hDuuu"
        BATCH_NORM_F16 "batch_norm_f16" 256 "hfffHluu"
        BATCH_NORM_BY_F16 "batch_norm_by_f16" 256 "hfffHluur"
        BATCH_NORM_GRADIENT_PARTS_F16 "batch_norm_gradient_parts_f16" 256 "hfhDuuu"
        BATCH_NORM_GRADIENT_F16 "batch_norm_gradient_f16" 256 "hffffhHluuu"
    }
    BATCH_NORM_SUMS_CU "batch_norm_sums.cu" ["run.cuh"] {
        BATCH_NORM_STATISTICS "batch_norm_statistics" 256 "dFFuuur"
        BATCH_NORM_GRADIENT_SUMS "batch_norm_gradient_sums" 256 "dFFuu"
    }
    LOSSES_CU "losses.cu" ["exact.cuh", "math.cuh", "sums.cuh", "f32.cuh", "wide.cuh"] {
        CROSS_ENTROPY "cross_entropy_f32" 512 "fifFDIuuruurf"
        MIXED_CROSS_ENTROPY "mixed_cross_entropy_f32" 512 "fifFDIuurrf"
        SQUARED_ERROR "squared_error_f32" 256 "ffFDIuurf"
        ARG_MAX "arg_max_f32" 256 "fIuu"
    }
    LOSSES_BF16_CU "losses.cu" ["quick.cuh", "math.cuh", "sums.cuh", "bf16.cuh", "wide.cuh"] {
        CROSS_ENTROPY_BF16 "cross_entropy_bf16" 512 "hifHDIuuruurf"
        MIXED_CROSS_ENTROPY_BF16 "mixed_cross_entropy_bf16" 512 "hifHDIuurrf"
        SQUARED_ERROR_BF16 "squared_error_bf16" 256 "hfHDIuurf"
        ARG_MAX_BF16 "arg_max_bf16" 256 "hIuu"
    }
    LOSSES_F16_CU "losses.cu" ["quick.cuh", "math.cuh", "sums.cuh", "f16.cuh", "wide.cuh"] {
        CROSS_ENTROPY_F16 "cross_entropy_f16" 512 "hifHDIuuruurf"
        MIXED_CROSS_ENTROPY_F16 "mixed_cross_entropy_f16" 512 "hifHDIuurrf"
        SQUARED_ERROR_F16 "squared_error_f16" 256 "hfHDIuurf"
        ARG_MAX_F16 "arg_max_f16" 256 "hIuu"
    }
    LOSS_SUMS_CU "loss_sums.cu" ["sums.cuh"] {
        LOSS_SUMS "loss_sums" 256 "diDIu"
    }
    POOLING_CU "pooling.cu" ["f32.cuh"] {
        MAX_POOL "max_pool_f32" 256 "fFIP"
        MAX_POOL_GRADIENT "max_pool_gradient_f32" 256 "ifFP"
        AVG_POOL "avg_pool_f32" 256 "fFP"
        AVG_POOL_GRADIENT "avg_pool_gradient_f32" 256 "fFP"
    }
    POOLING_BF16_CU "pooling.cu" ["bf16.cuh"] {
        MAX_POOL_BF16 "max_pool_bf16" 256 "hHIP"
        MAX_POOL_GRADIENT_BF16 "max_pool_gradient_bf16" 256 "ihHP"
        AVG_POOL_BF16 "avg_pool_bf16" 256 "hHP"
        AVG_POOL_GRADIENT_BF16 "avg_pool_gradient_bf16" 256 "hHP"
    }
    POOLING_F16_CU "pooling.cu" ["f16.cuh"] {
        MAX_POOL_F16 "max_pool_f16" 256 "hHIP"
        MAX_POOL_GRADIENT_F16 "max_pool_gradient_f16" 256 "ihHP"
        AVG_POOL_F16 "avg_pool_f16" 256 "hHP"
        AVG_POOL_GRADIENT_F16 "avg_pool_gradient_f16" 256 "hHP"
    }
    EMBEDDING_CU "embedding.cu" ["f32.cuh"] {
        EMBEDDING "embedding_f32" 256 "iffFluuu"
        EMBEDDING_GRADIENT "embedding_gradient_f32" 256 "iifFuuu"
        PLACES_GRADIENT "places_gradient_f32" 256 "fFluuu"
    }
    EMBEDDING_BF16_CU "embedding.cu" ["bf16.cuh"] {
        EMBEDDING_BF16 "embedding_bf16" 256 "iffHluuu"
        EMBEDDING_GRADIENT_BF16 "embedding_gradient_bf16" 256 "iihFuuu"
        PLACES_GRADIENT_BF16 "places_gradient_bf16" 256 "hFluuu"
    }
    EMBEDDING_F16_CU "embedding.cu" ["f16.cuh"] {
        EMBEDDING_F16 "embedding_f16" 256 "iffHluuu"
        EMBEDDING_GRADIENT_F16 "embedding_gradient_f16" 256 "iihFuuu"
        PLACES_GRADIENT_F16 "places_gradient_f16" 256 "hFluuu"
    }
    EMBEDDING_ORDER_CU "embedding_order.cu" [] {
        EMBEDDING_ORDER "embedding_order" 256 "iIu"
    }
    PRODUCT_CU "product.cu" ["exact.cuh", "math.cuh", "results.cuh", "tile.cuh"] {
        PRODUCT_32X64 "product_32x64" 256 "fffFuuullllluuu"
        LINEAR_GELU_32X64 "linear_gelu_32x64" 256 "fffFFuuuu"
        PRODUCT_64X64 "product_64x64" 256 "fffFuuullllluuu"
        LINEAR_GELU_64X64 "linear_gelu_64x64" 256 "fffFFuuuu"
        PRODUCT_128X128 "product_128x128" 256 "fffFuuullllluuu"
        LINEAR_GELU_128X128 "linear_gelu_128x128" 256 "fffFFuuuu"
    }
    CONV2D_CU "conv2d.cu" ["f32.cuh", "results.cuh", "tile.cuh", "conv.cuh", "conv_tiles.cuh"] {
        CONV2D_64X64 "conv2d_64x64" 256 "fffFCu"
        CONV2D_INPUT_GRADIENT_64X64 "conv2d_input_gradient_64x64" 256 "fffFC"
        CONV2D_32X256 "conv2d_32x256" 256 "fffFCu"
        CONV2D_INPUT_GRADIENT_32X256 "conv2d_input_gradient_32x256" 256 "fffFC"
        CONV2D_64X128 "conv2d_64x128" 256 "fffFCu"
        CONV2D_INPUT_GRADIENT_64X128 "conv2d_input_gradient_64x128" 256 "fffFC"
        CONV2D_128X128 "conv2d_128x128" 256 "fffFCu"
        CONV2D_INPUT_GRADIENT_128X128 "conv2d_input_gradient_128x128" 256 "fffFC"
        CONV2D_WEIGHT_GRADIENT_32X64 "conv2d_weight_gradient_32x64" 256 "ffFCu"
        CONV2D_WEIGHT_GRADIENT_64X64 "conv2d_weight_gradient_64x64" 256 "ffFCu"
        CONV2D_WEIGHT_GRADIENT_128X128 "conv2d_weight_gradient_128x128" 256 "ffFCu"
    }
    CONV3D_CU "conv3d.cu" ["f32.cuh", "results.cuh", "tile.cuh", "conv.cuh", "conv_tiles.cuh"] {
        CONV3D_64X64 "conv3d_64x64" 256 "fffFVu"
        CONV3D_INPUT_GRADIENT_64X64 "conv3d_input_gradient_64x64" 256 "fffFV"
        CONV3D_32X256 "conv3d_32x256" 256 "fffFVu"
        CONV3D_INPUT_GRADIENT_32X256 "conv3d_input_gradient_32x256" 256 "fffFV"
        CONV3D_64X128 "conv3d_64x128" 256 "fffFVu"
        CONV3D_INPUT_GRADIENT_64X128 "conv3d_input_gradient_64x128" 256 "fffFV"
        CONV3D_128X128 "conv3d_128x128" 256 "fffFVu"
        CONV3D_INPUT_GRADIENT_128X128 "conv3d_input_gradient_128x128" 256 "fffFV"
        CONV3D_WEIGHT_GRADIENT_32X64 "conv3d_weight_gradient_32x64" 256 "ffFVu"
        CONV3D_WEIGHT_GRADIENT_64X64 "conv3d_weight_gradient_64x64" 256 "ffFVu"
        CONV3D_WEIGHT_GRADIENT_128X128 "conv3d_weight_gradient_128x128" 256 "ffFVu"
    }
    CONV_BF16_CU "conv_half.cu" ["bf16.cuh", "tensor.cuh", "results.cuh", "tensor_tile.cuh", "conv.cuh"] {
        CONV2D_BF16 "conv2d_bf16" 128 "hhfHCu"
        CONV2D_BF16_INPUT_GRADIENT "conv2d_bf16_input_gradient" 128 "hhhHC"
        CONV2D_BF16_WEIGHT_GRADIENT "conv2d_bf16_weight_gradient" 128 "hhFCu"
        CONV3D_BF16 "conv3d_bf16" 128 "hhfHVu"
        CONV3D_BF16_INPUT_GRADIENT "conv3d_bf16_input_gradient" 128 "hhhHV"
        CONV3D_BF16_WEIGHT_GRADIENT "conv3d_bf16_weight_gradient" 128 "hhFVu"
    }
    CONV_F16_CU "conv_half.cu" ["f16.cuh", "tensor.cuh", "results.cuh", "tensor_tile.cuh", "conv.cuh"] {
        CONV2D_F16 "conv2d_f16" 128 "hhfHCu"
        CONV2D_F16_INPUT_GRADIENT "conv2d_f16_input_gradient" 128 "hhhHC"
        CONV2D_F16_WEIGHT_GRADIENT "conv2d_f16_weight_gradient" 128 "hhFCu"
        CONV3D_F16 "conv3d_f16" 128 "hhfHVu"
        CONV3D_F16_INPUT_GRADIENT "conv3d_f16_input_gradient" 128 "hhhHV"
        CONV3D_F16_WEIGHT_GRADIENT "conv3d_f16_weight_gradient" 128 "hhFVu"
    }
    RECURRENT_CU "recurrent.cu" ["exact.cuh", "math.cuh", "f32.cuh"] {
        LSTM_CELLS "lstm_cells_f32" 256 "ffFFFuuuu"
        GRU_CELLS "gru_cells_f32" 256 "ffFFuuuu"
        LSTM_GRADIENT "lstm_gradient_f32" 256 "fffFFuuuu"
        GRU_GRADIENT "gru_gradient_f32" 256 "ffFFuuuu"
    }
    RECURRENT_BF16_CU "recurrent.cu" ["exact.cuh", "math.cuh", "bf16.cuh"] {
        LSTM_CELLS_BF16 "lstm_cells_bf16" 256 "ffFFHuuuu"
        GRU_CELLS_BF16 "gru_cells_bf16" 256 "ffFHuuuu"
        LSTM_GRADIENT_BF16 "lstm_gradient_bf16" 256 "ffhFHuuuu"
        GRU_GRADIENT_BF16 "gru_gradient_bf16" 256 "fhHHuuuu"
    }
    RECURRENT_F16_CU "recurrent.cu" ["exact.cuh", "math.cuh", "f16.cuh"] {
        LSTM_CELLS_F16 "lstm_cells_f16" 256 "ffFFHuuuu"
        GRU_CELLS_F16 "gru_cells_f16" 256 "ffFHuuuu"
        LSTM_GRADIENT_F16 "lstm_gradient_f16" 256 "ffhFHuuuu"
        GRU_GRADIENT_F16 "gru_gradient_f16" 256 "fhHHuuuu"
    }
    ATTENTION_CU "attention.cu" ["exact.cuh", "math.cuh", "sums.cuh", "attention.cuh"] {
        ATTENTION_32 "attention_32" 128 "fFFuuuur"
        ATTENTION_QUERIES_32 "attention_queries_32" 128 "ffffFFuuuur"
        ATTENTION_KEYS_32 "attention_keys_32" 128 "ffffFuuuur"
        ATTENTION_64 "attention_64" 128 "fFFuuuur"
        ATTENTION_QUERIES_64 "attention_queries_64" 128 "ffffFFuuuur"
        ATTENTION_KEYS_64 "attention_keys_64" 128 "ffffFuuuur"
        ATTENTION_128 "attention_128" 128 "fFFuuuur"
        ATTENTION_QUERIES_128 "attention_queries_128" 128 "ffffFFuuuur"
        ATTENTION_KEYS_128 "attention_keys_128" 128 "ffffFuuuur"
        ATTENTION_256 "attention_256" 128 "fFFuuuur"
        ATTENTION_QUERIES_256 "attention_queries_256" 128 "ffffFFuuuur"
        ATTENTION_KEYS_256 "attention_keys_256" 128 "ffffFuuuur"
    }
    ATTENTION_BF16_CU "attention_half.cu" ["quick.cuh", "math.cuh", "sums.cuh", "bf16.cuh", "tensor.cuh", "attention.cuh"] {
        ATTENTION_BF16_32 "attention_bf16_32" 128 "hHFuuuur"
        ATTENTION_BF16_QUERIES_32 "attention_bf16_queries_32" 128 "hhfhHFuuuur"
        ATTENTION_BF16_KEYS_32 "attention_bf16_keys_32" 128 "hffhHuuuur"
        ATTENTION_BF16_64 "attention_bf16_64" 128 "hHFuuuur"
        ATTENTION_BF16_QUERIES_64 "attention_bf16_queries_64" 128 "hhfhHFuuuur"
        ATTENTION_BF16_KEYS_64 "attention_bf16_keys_64" 128 "hffhHuuuur"
        ATTENTION_BF16_128 "attention_bf16_128" 128 "hHFuuuur"
        ATTENTION_BF16_QUERIES_128 "attention_bf16_queries_128" 128 "hhfhHFuuuur"
        ATTENTION_BF16_KEYS_128 "attention_bf16_keys_128" 128 "hffhHuuuur"
    }
    ATTENTION_F16_CU "attention_half.cu" ["quick.cuh", "math.cuh", "sums.cuh", "f16.cuh", "tensor.cuh", "attention.cuh"] {
        ATTENTION_F16_32 "attention_f16_32" 128 "hHFuuuur"
        ATTENTION_F16_QUERIES_32 "attention_f16_queries_32" 128 "hhfhHFuuuur"
        ATTENTION_F16_KEYS_32 "attention_f16_keys_32" 128 "hffhHuuuur"
        ATTENTION_F16_64 "attention_f16_64" 128 "hHFuuuur"
        ATTENTION_F16_QUERIES_64 "attention_f16_queries_64" 128 "hhfhHFuuuur"
        ATTENTION_F16_KEYS_64 "attention_f16_keys_64" 128 "hffhHuuuur"
        ATTENTION_F16_128 "attention_f16_128" 128 "hHFuuuur"
        ATTENTION_F16_QUERIES_128 "attention_f16_queries_128" 128 "hhfhHFuuuur"
        ATTENTION_F16_KEYS_128 "attention_f16_keys_128" 128 "hffhHuuuur"
    }
    PRODUCT_BF16_CU "product_half.cu" ["quick.cuh", "math.cuh", "bf16.cuh", "tensor.cuh"] {
        PRODUCT_BF16_NT_64 "product_bf16_nt_64" 128 "hhfhFHuuullluuuu"
        PRODUCT_BF16_NN_64 "product_bf16_nn_64" 128 "hhfhFHuuullluuuu"
        PRODUCT_BF16_TN_64 "product_bf16_tn_64" 128 "hhfhFHuuullluuuu"
        PRODUCT_BF16_NT_128 "product_bf16_nt_128" 128 "hhfhFHuuullluuuu"
        PRODUCT_BF16_NN_128 "product_bf16_nn_128" 128 "hhfhFHuuullluuuu"
        PRODUCT_BF16_TN_128 "product_bf16_tn_128" 128 "hhfhFHuuullluuuu"
        LINEAR_BF16_GELU_64 "linear_bf16_gelu_64" 128 "hhfHHuuuuu"
        LINEAR_BF16_GELU_128 "linear_bf16_gelu_128" 128 "hhfHHuuuuu"
    }
    PRODUCT_F16_CU "product_half.cu" ["quick.cuh", "math.cuh", "f16.cuh", "tensor.cuh"] {
        PRODUCT_F16_NT_64 "product_f16_nt_64" 128 "hhfhFHuuullluuuu"
        PRODUCT_F16_NN_64 "product_f16_nn_64" 128 "hhfhFHuuullluuuu"
        PRODUCT_F16_TN_64 "product_f16_tn_64" 128 "hhfhFHuuullluuuu"
        PRODUCT_F16_NT_128 "product_f16_nt_128" 128 "hhfhFHuuullluuuu"
        PRODUCT_F16_NN_128 "product_f16_nn_128" 128 "hhfhFHuuullluuuu"
        PRODUCT_F16_TN_128 "product_f16_tn_128" 128 "hhfhFHuuullluuuu"
        LINEAR_F16_GELU_64 "linear_f16_gelu_64" 128 "hhfHHuuuuu"
        LINEAR_F16_GELU_128 "linear_f16_gelu_128" 128 "hhfHHuuuuu"
    }
}
