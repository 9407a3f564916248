// Writes to a protected collection with mongoose; prints what it says. Every driver's script does the same.
import mongoose from "mongoose";

const { Schema } = mongoose;
const connection = mongoose.createConnection(process.argv[2], { dbName: process.argv[3] });
await connection.asPromise();
// The constraint is there: mongoose mustn't make an index.
const schema = new Schema({ _id: Number, email: String }, { autoIndex: false, autoCreate: false, versionKey: false });
const User = connection.model("User", schema, "users");

async function refused(write) {
  try {
    await write();
    console.log("not refused");
  } catch (error) {
    const errors = error.writeErrors;
    if (errors) {
      const positions = [errors].flat().map((one) => one.index).join(",");
      console.log("refused", error.code, "at", positions, "inserted", error.insertedCount ?? error.result?.insertedCount);
    } else {
      console.log("refused", error.code, error.message.includes("email_1 dup key") ? "True" : "False");
    }
  }
}

await User.create({ _id: 1, email: "a@x" });
await refused(() => User.create({ _id: 2, email: "a@x" }));
const many = [{ _id: 3, email: "b@x" }, { _id: 4, email: "a@x" }, { _id: 5, email: "c@x" }];
await refused(() => User.insertMany(many, { ordered: false }));
const third = await User.findById(3);
third.email = "c@x";
await refused(() => third.save());
console.log("updated", (await User.updateOne({ _id: 3 }, { email: "d@x" })).modifiedCount);
console.log("before", (await User.findOneAndUpdate({ _id: 3 }, { email: "e@x" })).email);
await User.replaceOne({ _id: 6 }, { email: "f@x" }, { upsert: true });
console.log("deleted", (await User.deleteOne({ email: "a@x" })).deletedCount);
await new User({ _id: 7, email: "a@x" }).save();
console.log((await User.find().sort("_id").lean()).map((user) => user.email).join(" "));
await connection.close();
