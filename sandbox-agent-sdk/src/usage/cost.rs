//! Amounts of money.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::convert::text::printable;

/// An amount in one currency.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// The amount. Never negative, infinite or NaN.
    pub amount: f64,
    /// The currency: an ISO 4217 code, such as `USD`, or another unit, such as `credits`.
    pub currency: String,
}

impl Cost {
    /// Creates an amount in a currency. A negative or non-finite amount becomes zero.
    #[must_use]
    pub fn new(amount: f64, currency: impl Into<String>) -> Self {
        let amount = if amount.is_finite() && amount > 0.0 { amount } else { 0.0 };
        Self { amount, currency: currency.into() }
    }

    /// Parses a cost that an agent sent; `None` if the amount is invalid.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let amount = value.get("amount")?.as_f64().filter(|amount| amount.is_finite() && *amount >= 0.0)?;
        Some(Self { amount, currency: value.get("currency")?.as_str()?.to_owned() })
    }

    /// Adds the cost to the entry of the same currency in a list.
    pub(super) fn add_to(&self, costs: &mut Vec<Self>) {
        match costs.iter_mut().find(|cost| cost.currency == self.currency) {
            Some(cost) => cost.amount += self.amount,
            None => costs.push(self.clone()),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4} {}", self.amount, printable(&self.currency))
    }
}
