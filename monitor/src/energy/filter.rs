//! Undoing a sensor's smoothing between two edges, with the variance of what comes out.
//!
//! Rule: true power x wanders (a Wiener process), two first-order stages smooth it (u follows x, y follows u), a
//! reading shows y plus noise, and I adds up x between the window's edges. A Kalman filter over the state
//! (x, u, y, I) therefore estimates the window's energy from the readings before, in and some after it: I stands
//! still after the end, and readings that follow still correct it (fixed-point smoothing). Without noise and with
//! readings everywhere this is the identity
//!
//! ```text
//! ∫x over [a, b] = ∫y + (τ₁ + τ₂)·(y(b) − y(a)) + τ₁τ₂·(y′(b) − y′(a))
//! ```
//!
//! The gains belong to a fixed *design*: power that wanders much against noise, so readings are trusted. What the
//! estimate's variance really is follows from the same gains under the noise and the restlessness that the
//! recording shows, in parts that add up: noise, restlessness within the window, restlessness at its edges
//! (Joseph's form holds for any gain).
//!
//! Not done here: where noise and restlessness come from (`ring`), and bounds of the estimate's quantiles.
//! Sources: R. E. Kalman, "A New Approach to Linear Filtering and Prediction Problems" (1960); D. Simon, "Optimal
//! State Estimation" (2006), 5.2 (variance under other than the optimal gain), 9.2 (fixed-point smoothing).

/// Restlessness that the gains are made for, W²/s: some 60 W in 20 ms.
const DESIGN_Q: f64 = 2.0e5;
/// Variance of a reading's noise that the gains are made for, W².
const DESIGN_R: f64 = 1.0;
/// Shortest time constant, s: below it, readings are instants.
const LEAST_TAU_S: f64 = 1e-4;

const N: usize = 4;
const X: usize = 0;
const U: usize = 1;
const Y: usize = 2;
const I: usize = 3;

type Vector = [f64; N];
type Matrix = [[f64; N]; N];

/// Which part of the variance a stretch of time belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// Within the window, away from its edges.
    Inside,
    /// Near an edge, or outside.
    Edge,
}

/// Variances of the energy, J², by their origin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Variances {
    /// Noise of readings.
    pub(super) noise: f64,
    /// Power between readings within the window.
    pub(super) inside: f64,
    /// Power between readings at the edges.
    pub(super) edge: f64,
}

/// The filter.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    tau_s: [f64; 2],
    mean: Vector,
    design: Matrix,
    noise: Matrix,
    inside: Matrix,
    edge: Matrix,
}

impl Filter {
    /// A filter for two stages of smoothing, which starts at a power that may be off by `off_w2` (variance).
    pub(super) fn new(tau_s: [f64; 2], power_w: f64, off_w2: f64) -> Self {
        let first = tau_s[0].max(LEAST_TAU_S);
        let mut second = tau_s[1].max(LEAST_TAU_S / 2.0);
        if (first - second).abs() < 0.01 * first {
            // The closed forms below divide by the difference.
            second = 0.98 * first;
        }
        let diagonal = |value: f64| {
            let mut m = [[0.0; N]; N];
            for (i, row) in m.iter_mut().enumerate().take(I) {
                row[i] = value;
            }
            m
        };
        Self {
            tau_s: [first, second],
            mean: [power_w, power_w, power_w, 0.0],
            design: diagonal(DESIGN_Q * 0.04),
            noise: diagonal(0.0),
            inside: diagonal(0.0),
            edge: diagonal(off_w2),
        }
    }

    /// Lets `dt_s` pass in which power wanders by `q` W²/s; `counts` where that time is in the window.
    pub(super) fn advance(&mut self, dt_s: f64, counts: bool, q: f64, stretch: Stretch) {
        if dt_s <= 0.0 {
            return;
        }
        let transition = self.transition(dt_s, counts);
        let spread = self.spread(dt_s, counts);
        self.mean = apply(&transition, &self.mean);
        for part in [&mut self.design, &mut self.noise, &mut self.inside, &mut self.edge] {
            *part = sandwich(&transition, part);
        }
        add(&mut self.design, &spread, DESIGN_Q);
        match stretch {
            Stretch::Inside => add(&mut self.inside, &spread, q),
            Stretch::Edge => add(&mut self.edge, &spread, q),
        }
    }

    /// Takes in a reading whose noise has the variance `noise_w2`.
    pub(super) fn observe(&mut self, power_w: f64, noise_w2: f64) {
        let innovation_w2 = self.design[Y][Y] + DESIGN_R;
        let gain: Vector = std::array::from_fn(|i| self.design[i][Y] / innovation_w2);
        let surprise = power_w - self.mean[Y];
        let mut keep = [[0.0; N]; N];
        for (i, row) in keep.iter_mut().enumerate() {
            self.mean[i] += gain[i] * surprise;
            row[i] = 1.0;
            row[Y] -= gain[i];
        }
        for part in [&mut self.design, &mut self.noise, &mut self.inside, &mut self.edge] {
            *part = sandwich(&keep, part);
        }
        let outer: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| gain[i] * gain[j]));
        add(&mut self.design, &outer, DESIGN_R);
        add(&mut self.noise, &outer, noise_w2);
    }

    /// The energy so far, J.
    pub(super) fn energy_j(&self) -> f64 {
        self.mean[I]
    }

    /// Its variances.
    pub(super) fn variances(&self) -> Variances {
        let of = |m: &Matrix| m[I][I].max(0.0);
        Variances { noise: of(&self.noise), inside: of(&self.inside), edge: of(&self.edge) }
    }

    /// What becomes of the state in `dt_s` if power stays as it is.
    fn transition(&self, dt_s: f64, counts: bool) -> Matrix {
        let [t1, t2] = self.tau_s;
        let (e1, e2) = ((-dt_s / t1).exp(), (-dt_s / t2).exp());
        let through = t1 / (t1 - t2) * (e1 - e2);
        let mut m = [[0.0; N]; N];
        m[X][X] = 1.0;
        m[U][X] = 1.0 - e1;
        m[U][U] = e1;
        m[Y][X] = 1.0 - through - e2;
        m[Y][U] = through;
        m[Y][Y] = e2;
        m[I][X] = if counts { dt_s } else { 0.0 };
        m[I][I] = 1.0;
        m
    }

    /// Covariance that a wandering of 1 W²/s adds in `dt_s`: the integral of φφᵀ, φ(r) being what a step of power
    /// with the time r left makes of the state; Gauss's rule with five points.
    fn spread(&self, dt_s: f64, counts: bool) -> Matrix {
        const POINTS: [(f64, f64); 5] = [
            (0.046_910_077_030_668, 0.118_463_442_528_095),
            (0.230_765_344_947_158, 0.239_314_335_249_683),
            (0.5, 0.284_444_444_444_444),
            (0.769_234_655_052_842, 0.239_314_335_249_683),
            (0.953_089_922_969_332, 0.118_463_442_528_095),
        ];
        let mut sum = [[0.0; N]; N];
        for (at, weight) in POINTS {
            let left = self.transition(at * dt_s, counts);
            let phi: Vector = std::array::from_fn(|i| left[i][X]);
            let outer: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| phi[i] * phi[j]));
            add(&mut sum, &outer, weight * dt_s);
        }
        sum
    }
}

fn apply(m: &Matrix, v: &Vector) -> Vector {
    std::array::from_fn(|i| (0..N).map(|k| m[i][k] * v[k]).sum())
}

/// M P Mᵀ, kept symmetric.
fn sandwich(m: &Matrix, p: &Matrix) -> Matrix {
    let half: Matrix =
        std::array::from_fn(|i| std::array::from_fn(|j| (0..N).map(|k| m[i][k] * p[k][j]).sum()));
    let mut whole = [[0.0; N]; N];
    for i in 0..N {
        for j in 0..=i {
            let value = (0..N).map(|k| half[i][k] * m[j][k]).sum();
            whole[i][j] = value;
            whole[j][i] = value;
        }
    }
    whole
}

fn add(to: &mut Matrix, what: &Matrix, times: f64) {
    for (row, other) in to.iter_mut().zip(what) {
        for (value, more) in row.iter_mut().zip(other) {
            *value += times * more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAU: [f64; 2] = [0.014, 0.0042];

    /// 100 W, then 500 W from 1 s on, smoothed, read each 20 ms without noise; energy from 0.5 s to `to_s`
    /// where power is said to wander by `q`.
    fn step(to_s: f64, q: f64) -> (f64, Variances) {
        let shown = |t: f64| {
            let r = (t - 1.0).max(0.0);
            let fade = (TAU[0] * (-r / TAU[0]).exp() - TAU[1] * (-r / TAU[1]).exp()) / (TAU[0] - TAU[1]);
            100.0 + 400.0 * (1.0 - fade)
        };
        let mut filter = Filter::new(TAU, 100.0, 0.0);
        let mut now = 0.0;
        for k in 1..120 {
            let next = f64::from(k) * 0.020_001;
            for cut in [0.5, to_s, next] {
                let until = f64::min(cut, next);
                if until > now {
                    filter.advance(until - now, now >= 0.5 && now < to_s, q, Stretch::Edge);
                    now = until;
                }
            }
            filter.observe(shown(now), 1.0);
        }
        (filter.energy_j(), filter.variances())
    }

    #[test]
    fn smoothing_is_undone() {
        // A window that ends in the flat long after the step, and one that ends 30 ms after it, where y lags still by
        // 18.2 ms: what y shows up to then is 7 J less.
        assert!((step(1.7, 1e4).0 - 400.0).abs() < 0.5, "{}", step(1.7, 1e4).0);
        let (energy, variances) = step(1.03, 1e4);
        assert!((energy - 65.0).abs() < 1.5, "{energy}");
        let more = step(1.03, 9e4).1;
        assert!((more.edge / variances.edge - 9.0).abs() < 1e-9 && more.noise == variances.noise);
        assert!(variances.inside == 0.0);
    }

    #[test]
    fn parts_grow_with_what_they_come_from() {
        let noise = |w2: f64| {
            let mut filter = Filter::new(TAU, 300.0, 0.0);
            for _ in 0..50 {
                filter.advance(0.02, true, 0.0, Stretch::Inside);
                filter.observe(300.0, w2);
            }
            filter.variances()
        };
        let (one, four) = (noise(1.0), noise(4.0));
        assert!((four.noise / one.noise - 4.0).abs() < 1e-9 && one.inside == 0.0);
        // Fifty readings of 1 W over a second: somewhat more than 1 s × 1 W / √50, for the edge.
        assert!((0.14..0.3).contains(&one.noise.sqrt()), "{}", one.noise.sqrt());
    }
}
