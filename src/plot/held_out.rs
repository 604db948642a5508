//! Predictions against measurements, at points that the fit did not see.
//!
//! Rule: one panel a figure, both axes in its unit and logarithmic, a colour a model; a perfect prediction lies on the
//! line. What was simulated says so in the title.
//! Not done here: figures that some points lack are drawn for the others.

use anyhow::{Result, anyhow, bail};

use super::panels::{self, Axis, Panel};

/// One figure of all models.
pub struct Figure {
    /// What it is, with its unit.
    pub name: String,
    /// Model, measured, predicted; both above 0.
    pub points: Vec<(String, f64, f64)>,
}

/// Draws figures beside each other as SVG.
pub fn svg(title: &str, figures: &[Figure]) -> Result<String> {
    if figures.is_empty() || figures.iter().any(|f| f.points.is_empty()) {
        bail!("there is nothing to draw: no point was held out");
    }
    let mut models: Vec<String> = Vec::new();
    for (model, ..) in figures.iter().flat_map(|f| &f.points) {
        if !models.contains(model) {
            models.push(model.clone());
        }
    }
    let panels = figures.iter().map(|figure| panel(figure, &models)).collect::<Option<Vec<_>>>();
    let panels = panels.ok_or_else(|| anyhow!("there is nothing to draw: no value is above 0"))?;
    panels::svg(title, &models, panels::TALL, &[panels])
}

fn panel(figure: &Figure, models: &[String]) -> Option<Panel> {
    let axis = |what: &str| {
        let values = figure.points.iter().flat_map(|(_, measured, predicted)| [*measured, *predicted]);
        Axis::of_values(&format!("{what} {}", figure.name), true, values)
    };
    let (x, y) = (axis("measured")?, axis("predicted")?);
    let dots = figure.points.iter().filter_map(|(model, measured, predicted)| {
        Some((models.iter().position(|m| m == model)?, *measured, *predicted))
    });
    Some(Panel { reference: x.range.map(|v| (v, v)).to_vec(), dots: dots.collect(), lines: vec![], x, y })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_drawn_and_nothing_is_an_error() {
        let point = |model: &str, m: f64| (model.to_owned(), m, m * 1.1);
        let figure = |points| Figure { name: "power (W)".into(), points };
        let svg = svg("a <b>", &[figure(vec![point("x", 50.0), point("y", 90.0)])]).unwrap();
        assert_eq!(
            svg.matches("<circle").count() + svg.matches("h0").count(),
            4,
            "two points and two in the legend"
        );
        assert!(roxmltree::Document::parse(&svg).is_ok() && svg.contains("a &lt;b&gt;"));
        assert!(super::svg("t", &[figure(vec![])]).is_err());
    }
}
