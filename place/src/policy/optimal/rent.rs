//! What no plan costs less than, for any number of models.
//!
//! Rule: each size at each clock gets a rent, such that the rents of all that stands on one GPU never sum up to more than what
//! the GPU itself costs. A model then pays its weight and a rent at least, so Σ over the models of the least of (weight + rent) is
//! below the cost of every plan. Rents rise where models crowd: the direction is the demand less what GPUs would supply for
//! it, then the rents of each kind of GPU are scaled until its dearest set costs just what the GPU does.
//!
//! Cases: where the longest batch costs, kinds of GPUs are clocks × classes of the longest batch, each class up to 2 % longer than the one
//! below. A GPU of a class costs what its shortest batch does; a model whose own batch is longer pays that
//! much more rent, since its GPU costs more by the same part. A bound on GPUs is a price a GPU on top of what it costs, paid back for as many GPUs as
//! there are.
//! Not done: the best rents exactly; whatever they are, the bound holds. It lies below the cheapest plan by what whole GPUs cost more than
//! parts of them, which is little for hundreds of models and much for five.
//!
//! Source: Lagrangian duality of the assignment of models to slots (Fisher 1981), with subgradient steps towards a target (Polyak 1969).

use std::time::Instant;

use super::offers::Offers;

/// How much longer batches of a class are than those of the class below.
const RATIO: f64 = 1.02;
/// Most classes.
const CLASSES: usize = 400;
/// Steps without progress after which the target comes nearer.
const PATIENCE: u32 = 12;
/// The first target, as a part of the bound above it.
const AHEAD: f64 = 0.05;
/// The target that ends the search.
const NEAR: f64 = 2e-5;

/// A model's choice with the rents that were found.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Index of the clock.
    pub clock: usize,
    /// Class of the longest batch.
    pub class: usize,
    /// Index of the offer at that clock.
    pub offer: usize,
}

/// Rents, and what follows from them.
#[derive(Debug)]
pub struct Rents {
    /// No plan costs less.
    pub bound: f64,
    /// By model.
    pub choices: Vec<Choice>,
    /// What a GPU costs beyond itself because there are not enough.
    pub per_gpu: f64,
}

/// One offer of a model.
struct Way {
    /// Where the rent of its own class stands.
    slot: u32,
    /// How much more than that it pays.
    factor: f64,
    weight: f64,
    offer: u32,
}

/// The market: rents by clock, size and class.
struct Market<'a> {
    offers: &'a Offers<'a>,
    sizes: Vec<u32>,
    classes: usize,
    /// What a GPU costs, by clock and class.
    costs: Vec<f64>,
    ways: Vec<Vec<Way>>,
}

/// Rents that are good after a while.
pub fn rents(offers: &Offers, gpus: Option<u32>, until: Instant) -> Rents {
    let market = Market::new(offers);
    let slots = market.costs.len() * market.sizes.len();
    let mut rents = vec![1.0; slots];
    let mut per_gpu = 0.0f64;
    // At the start each size pays its part of a GPU.
    for (i, rent) in rents.iter_mut().enumerate() {
        *rent = f64::from(market.sizes[i / market.classes % market.sizes.len()]);
    }
    let kinds: Vec<usize> = (0..market.costs.len()).collect();
    market.scale(&mut rents, per_gpu, &kinds);
    let mut best = Rents { bound: f64::NEG_INFINITY, choices: Vec::new(), per_gpu };
    let mut best_rents = rents.clone();
    let (mut ahead, mut stale) = (AHEAD, 0);
    let mut direction = vec![0.0; slots];
    loop {
        let (sum, choices) = market.choose(&rents);
        let bound = sum - gpus.map_or(0.0, |n| per_gpu * f64::from(n));
        let gained = bound - best.bound;
        if gained > 0.0 {
            best = Rents { bound, choices: choices.clone(), per_gpu };
            best_rents.copy_from_slice(&rents);
        }
        if gained > 0.1 * ahead * best.bound {
            stale = 0;
        } else {
            stale += 1;
        }
        if stale > PATIENCE {
            (ahead, stale) = (ahead / 2.0, 0);
            rents.copy_from_slice(&best_rents);
            per_gpu = best.per_gpu;
            direction.fill(0.0);
            if ahead < NEAR {
                break;
            }
            continue;
        }
        if Instant::now() > until {
            break;
        }
        let wanted_gpus = market.direct(&rents, per_gpu, &choices, &mut direction);
        let surplus = gpus.map_or(0.0, |n| wanted_gpus - f64::from(n));
        let surplus = if per_gpu <= 0.0 { surplus.max(0.0) } else { surplus };
        let norm: f64 = direction.iter().map(|d| d * d).sum::<f64>() + surplus * surplus;
        if norm <= 0.0 {
            break;
        }
        let step = (best.bound * (1.0 + ahead) - bound) / norm;
        rents.iter_mut().zip(&direction).for_each(|(rent, d)| *rent = (*rent + step * d).max(0.0));
        let before = per_gpu;
        per_gpu = (per_gpu + step * surplus).max(0.0);
        if per_gpu == before {
            let mut changed: Vec<usize> =
                choices.iter().map(|c| c.clock * market.classes + c.class).collect();
            changed.sort_unstable();
            changed.dedup();
            market.scale(&mut rents, per_gpu, &changed);
        } else {
            market.scale(&mut rents, per_gpu, &kinds);
        }
    }
    best
}

impl<'a> Market<'a> {
    fn new(offers: &'a Offers<'a>) -> Self {
        let (clocks, models) = (offers.terms.len(), offers.problem.models.len());
        let all = || (0..clocks).flat_map(|c| (0..models).flat_map(move |m| offers.of(c, m)));
        let mut sizes: Vec<u32> = all().map(|o| o.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let least_ms = all().map(|o| o.latency_ms).fold(f64::INFINITY, f64::min);
        let most_ms = all().map(|o| o.latency_ms).fold(0.0, f64::max);
        let (mut classes, mut ratio) = (1, RATIO);
        if least_ms > 0.0 {
            let span = (most_ms / least_ms).ln();
            ratio = RATIO.max((span / (CLASSES - 1) as f64).exp());
            classes = (span / ratio.ln()) as usize + 1;
        }
        let low_ms = |class: usize| if least_ms > 0.0 { least_ms * ratio.powi(class as i32) } else { 0.0 };
        let class_of = |ms: f64| {
            let guess = if least_ms > 0.0 { ((ms / least_ms).ln() / ratio.ln()) as usize } else { 0 };
            // Logarithms round; a class never begins above what is in it.
            let guess = guess.min(classes - 1);
            if guess > 0 && low_ms(guess) > ms { guess - 1 } else { guess }
        };
        let cost = |clock: usize, ms: f64| offers.terms[clock].fixed + offers.terms[clock].per_latency * ms;
        let costs = (0..clocks).flat_map(|c| (0..classes).map(move |k| (c, k)));
        let costs = costs.map(|(c, k)| cost(c, low_ms(k))).collect();
        let mut ways = Vec::with_capacity(models);
        for model in 0..models {
            let mut of_model = Vec::new();
            for clock in 0..clocks {
                for (offer, o) in offers.of(clock, model).iter().enumerate() {
                    let class = class_of(o.latency_ms);
                    let size = sizes.binary_search(&o.size).unwrap_or(0);
                    let low = cost(clock, low_ms(class));
                    let factor = if low > 0.0 { (cost(clock, o.latency_ms) / low).max(1.0) } else { 1.0 };
                    of_model.push(Way {
                        slot: ((clock * sizes.len() + size) * classes + class) as u32,
                        factor,
                        weight: o.weight,
                        offer: offer as u32,
                    });
                }
            }
            ways.push(of_model);
        }
        Self { offers, sizes, classes, costs, ways }
    }

    /// The sum of what the models pay at least, and what each chooses.
    fn choose(&self, rents: &[f64]) -> (f64, Vec<Choice>) {
        // The least rent in this class or a longer one, and where it is.
        let mut least: Vec<(f64, u32)> = rents.iter().enumerate().map(|(i, r)| (*r, i as u32)).collect();
        for of_size in least.chunks_mut(self.classes) {
            for class in (0..of_size.len().saturating_sub(1)).rev() {
                if of_size[class + 1].0 < of_size[class].0 {
                    of_size[class] = of_size[class + 1];
                }
            }
        }
        let mut sum = 0.0;
        let choose = |ways: &Vec<Way>| {
            let mut cheapest = (f64::INFINITY, 0, 0);
            for way in ways {
                let slot = way.slot as usize;
                let own = rents[slot] * way.factor;
                let longer = if (slot + 1).is_multiple_of(self.classes) {
                    (f64::INFINITY, 0)
                } else {
                    least[slot + 1]
                };
                let (rent, at) = if own <= longer.0 { (own, way.slot) } else { longer };
                if way.weight + rent < cheapest.0 {
                    cheapest = (way.weight + rent, at, way.offer);
                }
            }
            sum += cheapest.0;
            let (slot, offer) = (cheapest.1 as usize, cheapest.2 as usize);
            let clock = slot / (self.classes * self.sizes.len());
            Choice { clock, class: slot % self.classes, offer }
        };
        let choices = self.ways.iter().map(choose).collect();
        (sum, choices)
    }

    /// Turns the direction towards demand less supply; gives how many GPUs the demand is worth.
    fn direct(&self, rents: &[f64], per_gpu: f64, choices: &[Choice], direction: &mut [f64]) -> f64 {
        direction.iter_mut().for_each(|d| *d *= 0.5);
        let mut wanted = std::collections::BTreeMap::<usize, Vec<f64>>::new();
        for (model, c) in choices.iter().enumerate() {
            let size = self.offers.of(c.clock, model)[c.offer].size;
            let size = self.sizes.binary_search(&size).unwrap_or(0);
            let counts =
                wanted.entry(c.clock * self.classes + c.class).or_insert_with(|| vec![0.0; self.sizes.len()]);
            counts[size] += 1.0;
        }
        let mut gpus = 0.0;
        for (kind, counts) in wanted {
            let of_kind = self.of_kind(rents, kind);
            let (_, supply) = self.offers.room.dearest(&self.sizes, &of_kind);
            let paid: f64 = counts.iter().zip(&of_kind).map(|(n, r)| n * r).sum();
            let bins = paid / (self.costs[kind] + per_gpu).max(f64::MIN_POSITIVE);
            gpus += bins;
            for (size, (n, s)) in counts.iter().zip(supply).enumerate() {
                direction[self.slot(kind, size)] += n - bins * s;
            }
        }
        gpus
    }

    /// Scales the rents of these kinds of GPUs until the dearest set of each costs what the GPU does.
    fn scale(&self, rents: &mut [f64], per_gpu: f64, kinds: &[usize]) {
        for &kind in kinds {
            let of_kind = self.of_kind(rents, kind);
            let (dearest, _) = self.offers.room.dearest(&self.sizes, &of_kind);
            let scale = if dearest > 0.0 { (self.costs[kind] + per_gpu) / dearest } else { 0.0 };
            for size in 0..self.sizes.len() {
                rents[self.slot(kind, size)] *= scale;
            }
        }
    }

    fn of_kind(&self, rents: &[f64], kind: usize) -> Vec<f64> {
        (0..self.sizes.len()).map(|size| rents[self.slot(kind, size)]).collect()
    }

    fn slot(&self, kind: usize, size: usize) -> usize {
        let (clock, class) = (kind / self.classes, kind % self.classes);
        (clock * self.sizes.len() + size) * self.classes + class
    }
}
