//! A net in the GPU's memory, at one batch size.
//!
//! Rule: the first layer reads a tensor that nobody writes, and layers with two inputs read it too, each from another place; two
//! more are read and written by turns. Weights are random with a variance of 1 / inputs and values have one of 1, so that numbers
//! stay as lively as a trained net's: power depends on them. A batch is one launch of a CUDA graph; where it cannot be captured, layers are launched one by one.
//! Cases: what does not fit is known before anything is allocated, from the free memory, or said by the driver.

use std::time::Instant;

use half::f16;

use super::gpu::{Buffer, CudaError, Gpu, Graph};
use super::net::{Batch, Net, Op};

/// √3: evenly spread over ±√3, values have a variance of 1.
const LIMIT: f32 = 1.732_050_8;
/// Second inputs begin so many eights of values apart.
const SHIFT: u64 = 104_729;
/// Bytes of a value.
const VALUE: u64 = 2;

/// A net that can run.
pub struct Model {
    batch: Batch,
    weights: Vec<Buffer>,
    tensors: [Buffer; 3],
    scratch: Buffer,
    graph: Option<Graph>,
}

impl Model {
    /// Puts a net into memory, and runs a batch.
    pub fn load(gpu: &Gpu, net: &Net, items: u32) -> Result<Self, CudaError> {
        let batch = net.batch(items).map_err(|e| CudaError::Cannot(e.to_string()))?;
        let weights = batch.weights.iter().map(|(n, k)| u64::from(*n) * u64::from(*k));
        let needs = VALUE * (weights.sum::<u64>() + 3 * batch.tensor + batch.scratch);
        if needs > gpu.free_memory()?.0 {
            return Err(CudaError::Memory("making room for the net"));
        }
        let mut seed = 0;
        let mut random = |values: u64, limit: f32| {
            let buffer = gpu.memory(VALUE * values)?;
            seed += 1 << 40;
            gpu.fill(&buffer, limit, seed)?;
            Ok::<_, CudaError>(buffer)
        };
        let mut weights = Vec::with_capacity(batch.weights.len());
        for (n, k) in &batch.weights {
            weights.push(random(u64::from(*n) * u64::from(*k), LIMIT / (*k as f32).sqrt())?);
        }
        let tensors =
            [random(batch.tensor, LIMIT)?, random(batch.tensor, LIMIT)?, random(batch.tensor, LIMIT)?];
        let scratch = random(batch.scratch, LIMIT)?;
        let mut model = Self { batch, weights, tensors, scratch, graph: None };
        // cuBLAS chooses and loads its kernels at their first launch, which no graph may hold.
        model.launch(gpu)?;
        gpu.wait()?;
        model.graph = gpu.capture(|| model.launch(gpu)).ok();
        model.run(gpu)?;
        Ok(model)
    }

    /// Runs a batch; gives its time, µs, from before the launch until it is done.
    pub fn run(&self, gpu: &Gpu) -> Result<f64, CudaError> {
        let began = Instant::now();
        match &self.graph {
            Some(graph) => gpu.replay(graph)?,
            None => self.launch(gpu)?,
        }
        gpu.wait()?;
        Ok(began.elapsed().as_secs_f64() * 1e6)
    }

    /// Whether a batch is one launch.
    pub fn captured(&self) -> bool {
        self.graph.is_some()
    }

    /// Mean square of the values that the last layer wrote, of at most a million: 1 where numbers stay as they begin.
    pub fn second_moment(&self, gpu: &Gpu) -> Result<f64, CudaError> {
        let written = self.batch.ops.iter().filter(|op| !matches!(op, Op::Im2col(_))).count();
        let [input, first, second] = &self.tensors;
        let (last, values) = match self.batch.ops.last() {
            Some(Op::Gemm { m, n, .. }) => (written, m * u64::from(*n)),
            Some(Op::Elementwise { elements, .. }) => (written, *elements),
            _ => (0, self.batch.tensor),
        };
        let buffer = match last {
            0 => input,
            odd if odd % 2 == 1 => first,
            _ => second,
        };
        let values = gpu.read(buffer, values.min(1_000_000) as usize)?;
        let square = |bits: &u16| f64::from(f16::from_bits(*bits)).powi(2);
        Ok(values.iter().map(square).sum::<f64>() / values.len().max(1) as f64)
    }

    /// Memory that it takes, bytes.
    pub fn bytes(&self) -> u64 {
        self.weights.iter().chain(&self.tensors).chain([&self.scratch]).map(Buffer::bytes).sum()
    }

    fn launch(&self, gpu: &Gpu) -> Result<(), CudaError> {
        let [input, first, second] = &self.tensors;
        let (mut from, mut to, mut next) = (input, first, second);
        for (number, op) in (0..).zip(&self.batch.ops) {
            match op {
                Op::Im2col(op) => {
                    gpu.im2col(from, &self.scratch, op)?;
                    continue;
                }
                Op::Gemm { m, n, k, weights, gathered } => {
                    let weights = self.weights.get(*weights).unwrap_or(input);
                    let a = if *gathered { &self.scratch } else { from };
                    gpu.gemm((a, weights, to), (*m, *n, *k))?;
                }
                Op::Elementwise { elements, inputs } => {
                    let second = (*inputs == 2).then_some(input);
                    gpu.elementwise((from, second), to, (*elements, SHIFT * (number + 1)))?;
                }
            }
            (from, to, next) = (to, next, to);
        }
        Ok(())
    }
}
