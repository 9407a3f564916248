// Holds a PodMonitor, the JSON in the first argument, against the operator's schema, which has no other fields than its types have.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";

const monitor = JSON.parse(process.argv[2]);
new PodMonitor(monitor).validate();
const place = import.meta.resolve("@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitorSpec");
const types = readFileSync(fileURLToPath(place).replace(/\.js$/, ".d.ts"), "utf8");
for (const field of Object.keys(monitor.spec)) {
  if (!types.includes(`"${field}"`)) throw new Error(`a PodMonitor has no field ${field}`);
}
