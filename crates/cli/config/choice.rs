//! The keys whose value is one word of a few.

use dtrain_types::words;

words!(
    /// What separates the ranks of one host.
    Isolation {
        /// A process each: a crash of one leaves the others alone.
        Process = "process",
        /// Threads of one process: no start-up cost, no protection.
        Thread = "thread",
    }
);
words!(
    /// What carries the gradients from rank to rank.
    Backend {
        /// NCCL between GPUs of one host whose test of it has passed, else the host.
        Auto = "auto",
        /// Shared memory, and encrypted links between hosts.
        Host = "host",
        /// NCCL, or RCCL.
        Nccl = "nccl",
    }
);
words!(
    /// Where the state of a Python program that trains on GPUs lies.
    Offload {
        /// On its GPU, where dtrain has what it needs for that, else in the host's memory.
        Auto = "auto",
        /// On its GPU.
        Nothing = "none",
        /// In the host's memory, where the updates are made.
        State = "state",
    }
);
words!(
    /// Which reader of data.
    DataKind {
        /// The handwritten digits inside the binary.
        Digits = "digits",
        /// Files in the format of MNIST.
        Idx = "idx",
        /// Images in folders.
        Images = "images",
        /// Images in tar archives.
        Tar = "tar",
        /// Images in Parquet files of the Hugging Face Hub.
        ParquetImages = "parquet_images",
        /// Clips in folders.
        Clips = "clips",
        /// A table of numbers.
        Csv = "csv",
        /// The same in a Parquet file.
        Parquet = "parquet",
        /// Recordings of sensors, cut into windows.
        Windows = "windows",
        /// Two NumPy arrays.
        Npy = "npy",
        /// The bytes of a file.
        Text = "text",
        /// The token ids of a file.
        Tokens = "tokens",
        /// The data of a program of one's own.
        Own = "own",
        /// The data of a Python program.
        Torch = "torch",
    }
);
words!(
    /// Which family of models.
    ModelKind {
        /// Fully connected layers.
        Mlp = "mlp",
        /// Convolutions over images, then fully connected layers.
        Cnn = "cnn",
        /// The same over sequences.
        Cnn1d = "cnn1d",
        /// The same over volumes.
        Cnn3d = "cnn3d",
        /// A residual network over images.
        ResNet = "resnet",
        /// A transformer over patches of images.
        Vit = "vit",
        /// Long short-term memory over sequences.
        Lstm = "lstm",
        /// Gated recurrent units over sequences.
        Gru = "gru",
        /// A transformer over the places of sequences.
        Transformer = "transformer",
        /// A causal transformer.
        Gpt = "gpt",
        /// The same as OpenAI's GPT-2.
        Gpt2 = "gpt2",
        /// A causal transformer as Llama, Mistral and Qwen 2 are.
        Llama = "llama",
        /// The model of a program of one's own.
        Own = "own",
        /// The model of a Python program.
        Torch = "torch",
    }
);
words!(
    /// What stands in front of the blocks of a residual network.
    StemKind {
        /// By the size of the images.
        Auto = "auto",
        /// A large convolution with a stride, and a pooling.
        Large = "large",
        /// A small convolution.
        Small = "small",
    }
);
words!(
    /// Whether blocks of a model make their forward pass again, in place of keeping what the backward pass needs.
    Recompute {
        /// Where a GPU has no room otherwise.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
);
words!(
    /// What is done about a micro-batch that a GPU has no room for.
    Oom {
        /// The run ends before its first step, and names one that there is room for.
        Stop = "stop",
        /// That one is taken.
        Shrink = "shrink",
    }
);
words!(
    /// What computes large products of halves on GPUs.
    Kernels {
        /// NVIDIA's library, where it is there and faster.
        Auto = "auto",
        /// dtrain's own.
        Own = "own",
    }
);
words!(
    /// Which loss.
    LossKind {
        /// Softmax and negative log likelihood.
        CrossEntropy = "cross_entropy",
        /// Mean squared error.
        Mse = "mse",
        /// The loss of a Python program.
        Torch = "torch",
    }
);
words!(
    /// Which optimizer.
    OptimizerKind {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// The sign of a momentum.
        Lion = "lion",
        /// A momentum made orthogonal, for matrices of hidden layers; AdamW for the rest.
        Muon = "muon",
        /// Gradient descent with momentum.
        Sgd = "sgd",
        /// That of a Python program.
        Torch = "torch",
    }
);
words!(
    /// How the learning rate runs over the training.
    ScheduleKind {
        /// Half a cosine down.
        Cosine = "cosine",
        /// A straight line down.
        Linear = "linear",
        /// Flat.
        Constant = "constant",
        /// Up along half a cosine, and down along another.
        OneCycle = "one_cycle",
        /// Drops at fixed places.
        Step = "step",
    }
);
words!(
    /// Who keeps the curves of many runs.
    TrackerKind {
        /// Files for TensorBoard.
        TensorBoard = "tensorboard",
        /// A server of MLflow.
        Mlflow = "mlflow",
        /// Offline files of Weights & Biases.
        Wandb = "wandb",
    }
);
