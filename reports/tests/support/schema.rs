//! Checks a JSON document against the part of JSON Schema that ours is written in; any other keyword is an error, and
//! so is a field that an object's schema does not tell.

#![allow(clippy::unwrap_used, reason = "a schema of ours is what it is expected to be")]

use serde_json::Value;

pub(crate) struct Schema(Value);

impl Schema {
    pub(crate) fn of_runs() -> Schema {
        Schema(serde_json::from_str(include_str!("../../schema/run-2.json")).unwrap())
    }

    pub(crate) fn of_diffs() -> Schema {
        Schema(serde_json::from_str(include_str!("../../schema/diff-1.json")).unwrap())
    }

    /// # Errors
    /// Where the document is not as the schema says.
    pub(crate) fn check(&self, document: &Value) -> Result<(), String> {
        self.at(&self.0, document, "document")
    }

    fn at(&self, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{place} is {value}, which is not {what}"));
        for (keyword, rule) in schema.as_object().unwrap() {
            match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" => {}
                "$ref" => self.at(
                    self.0.pointer(rule.as_str().unwrap().strip_prefix('#').unwrap()).unwrap(),
                    value,
                    place,
                )?,
                "const" if rule != value => return wrong(&rule.to_string()),
                "enum" if !rule.as_array().unwrap().contains(value) => {
                    return wrong(&format!("one of {rule}"));
                }
                "const" | "enum" => {}
                "type" => {
                    let types = rule.as_array().map_or(std::slice::from_ref(rule), Vec::as_slice);
                    if !types.iter().any(|kind| is(value, kind.as_str().unwrap())) {
                        return wrong(&rule.to_string());
                    }
                }
                "minimum" => {
                    if value.as_f64().is_some_and(|number| number < rule.as_f64().unwrap()) {
                        return wrong(&format!("{rule} or more"));
                    }
                }
                "oneOf" => {
                    let fitting =
                        rule.as_array().unwrap().iter().filter(|one| self.at(one, value, place).is_ok());
                    if fitting.count() != 1 {
                        return wrong(&format!("exactly one of {rule}"));
                    }
                }
                "items" => {
                    for (nth, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.at(rule, item, &format!("{place}[{nth}]"))?;
                    }
                }
                "required" => {
                    let there = |name: &&Value| value.get(name.as_str().unwrap()).is_none();
                    if let Some(missing) = rule.as_array().unwrap().iter().find(there) {
                        return Err(format!("{place} has no {missing}"));
                    }
                }
                "properties" => {
                    for (name, item) in value.as_object().into_iter().flatten() {
                        let Some(rule) = rule.get(name) else { return Err(format!("{place} has {name}")) };
                        self.at(rule, item, &format!("{place}.{name}"))?;
                    }
                }
                other => return Err(format!("the schema says {other}, which nobody checks")),
            }
        }
        Ok(())
    }
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
